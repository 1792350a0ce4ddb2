"""`loop-rl convert`: a looped model written again, in our own layout or in that of the family it came from."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from loop_rl.errors import UserError
from loop_rl.models import LoopedForCausalLM, load_checkpoint, save_family_checkpoint
from loop_rl.models.families.files import WeightFiles
from loop_rl.models.families.layout import HEAD
from loop_rl.models.loading import load_tokenizer, model_folder
from loop_rl.models.prefill import STUDENT_FILE

#: files of a tokenizer, and what a released model has to be passed on with
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja")
_PASSED_ON = (*_TOKENIZER, "LICENSE*", "NOTICE*", STUDENT_FILE)
_TABLES = "freqs_cis"


def convert(path: str, out: str, layout: str, dtype: str | None) -> str:
    """Writes the model at `path` to the folder `out`, which appears only when it is complete; returns what to say.

    Args:
        path: as a recipe's model.path. layout: own, or family: that of the checkpoint it was converted from.
        dtype: the type to write; None: that of the files.

    Raises:
        UserError: `out` exists, the model can't be loaded, or it came from no family.
    """
    target = Path(out).expanduser()
    _refuse_existing(target)
    source = model_folder(path)
    model = load_checkpoint(source, getattr(torch, dtype or _stored_dtype(source)))
    if dtype is not None and model.config.checkpoint_config is not None:
        for key in ("torch_dtype", "dtype"):  # of the released config.json, which goes back into the family's layout
            if key in model.config.checkpoint_config:
                model.config.checkpoint_config[key] = dtype
    if layout == "family" and model.config.checkpoint_family is None:
        raise UserError(f"{path} was not made from a released family's checkpoint; use --layout own")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as made:
        temporary = Path(made) / target.name
        temporary.mkdir()
        _write(model, source, temporary, layout)
        _sync(temporary)
        _refuse_existing(target)
        os.rename(temporary, target)
    family = model.config.checkpoint_family
    return (
        f"{target}: {'our own layout' if layout == 'own' else f'the layout of {family}'}, "
        f"{sum(p.numel() for p in model.parameters()):,} parameters in {str(model.dtype).removeprefix('torch.')}\n"
    )


def _write(model: LoopedForCausalLM, source: Path, folder: Path, layout: str) -> None:
    for pattern in _PASSED_ON:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
    if layout == "family":
        save_family_checkpoint(model, folder)
        return
    model.save_pretrained(folder)
    if any(folder.glob("tokenizer*")):  # with the special tokens that the config names, which a family's may lack
        load_tokenizer(str(source), model.config).save_pretrained(folder)


def _stored_dtype(folder: Path) -> str:
    """The type of all tensors that are loaded; UserError when there are several, or one that is no float."""
    kinds = {kind for name, kind in WeightFiles(folder).dtypes.items() if name not in (_TABLES, HEAD)}
    if len(kinds) == 1 and (kind := kinds.pop()) in ("float32", "bfloat16", "float16"):
        return kind
    raise UserError(f"the weights in {folder} are of {', '.join(sorted(kinds))}; choose one type by --dtype")


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists already; remove it, or name another folder")


def _sync(folder: Path) -> None:
    for place in (*folder.iterdir(), folder):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
