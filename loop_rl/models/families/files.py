"""Tensors in a checkpoint folder: safetensors or .bin, whole or in shards, every damage named in one line."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from loop_rl.errors import UserError, first_line

SAFETENSORS, BIN, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LFS_POINTER = b"version https://git-lfs"


class WeightFiles:
    """The tensors of a folder: names, shapes and types at once, values one at a time.

    dtypes: torch's names of them, or safetensors' own where torch has none; main: the file read first.

    Raises:
        UserError: no weights, a file missing, cut short or not what it claims, an index that disagrees with its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pickled: dict[str, Tensor] = {}
        self._file_of: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        main = weights_file(folder)
        if main is None:
            raise UserError(
                f"{folder} holds no weights ({SAFETENSORS} or {BIN}, whole or with an index); copy it again"
            )
        if main.name.endswith(INDEX):
            self._read_index(main)
        else:
            self._add(main)

    def tensor(self, name: str) -> Tensor:
        """One tensor, on the CPU."""
        if name in self._pickled:
            return self._pickled[name]
        with safe_open(self._file_of[name], framework="pt") as file:
            return file.get_tensor(name)

    def _read_index(self, path: Path) -> None:
        try:
            index = json.loads(path.read_text())
            listed: Mapping[str, str] = index["weight_map"]
            names = sorted(set(listed.values()))
            total = index.get("metadata", {}).get("total_size")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is no index of weights ({first_line(error)}); copy it again") from error
        for name in names:
            if Path(name).name != name:
                raise UserError(f"{path} names {name!r}, which is not a file beside it")
            if not (self.folder / name).is_file():
                raise UserError(f"{self.folder} lacks {name}, which {path.name} lists; copy it again")
            self._add(self.folder / name)
        found = {key: file.name for key, file in self._file_of.items()}
        wrong = sorted(key for key in found.keys() | listed.keys() if found.get(key) != listed.get(key))
        if wrong:
            place, claimed = found.get(wrong[0], "no file"), listed.get(wrong[0], "no file")
            raise UserError(f"{path} puts {wrong[0]} in {claimed}, but it is in {place}; copy the folder again")
        held = sum((self.folder / name).stat().st_size for name in names)
        if isinstance(total, int) and total > held:
            raise UserError(f"{path} promises {total} bytes, its files hold {held}; copy the folder again")

    def _add(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise UserError(f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
        if path.suffix == ".safetensors":
            self._add_safetensors(path)
        else:
            self._add_pickled(path)

    def _add_safetensors(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}
                shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
                kinds = {name: part.get_dtype() for name, part in slices.items()}
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(
                f"the weights in {path} can't be read ({first_line(error)}); the file may be cut short: copy it again"
            ) from error
        self._register(path, shapes)
        self.dtypes.update({name: _DTYPES.get(kind, kind) for name, kind in kinds.items()})

    def _add_pickled(self, path: Path) -> None:
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path} is damaged, or holds more than tensors, which is refused ({first_line(error)})"
            ) from error
        except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
            raise UserError(
                f"the weights in {path} can't be read ({first_line(error)}); the file may be cut short: copy it again"
            ) from error
        if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise UserError(f"{path} is not a dictionary of tensors")
        self._register(path, {name: tuple(value.shape) for name, value in tensors.items()})
        self.dtypes.update({name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()})
        self._pickled.update(tensors)

    def _register(self, path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        for name in shapes:
            if name in self._file_of:
                raise UserError(f"{name} is in {self._file_of[name]} and in {path}; copy the folder again")
            self._file_of[name] = path
        self.shapes.update(shapes)


def weights_file(folder: Path) -> Path | None:
    """The file or the index that a folder's weights are read from; None without weights."""
    names = (SAFETENSORS, SAFETENSORS + INDEX, BIN, BIN + INDEX)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file.

    Raises:
        UserError: it is no JSON, or no object.
    """
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read ({first_line(error)}); copy it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is no JSON object; copy it again")
    return value
