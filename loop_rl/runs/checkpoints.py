"""Checkpoints that are either complete or invisible: written under a temporary name, sealed, then renamed."""

import contextlib
import hashlib
import json
import logging
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loop_rl.errors import UserError, type_and_message
from loop_rl.models.initial_state import INITIAL_STATE_VERSION
from loop_rl.runs.disk import INCOMPLETE, sync, sync_tree, writing

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d+)")


def save_checkpoint(folder: Path, step: int, save: Callable[[Path], None], keep: int) -> Path:
    """Write folder/step_<step> through `save(path)` and keep the newest `keep` complete checkpoints.

    The manifest (size and SHA-256 of every file) is written last and everything is synced before the rename, so a
    process or machine that dies at any moment leaves the earlier checkpoints as they were. Raises UserError where the
    disk refuses, such as a full one; nothing is left of the new checkpoint then.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}: at least the checkpoint just written stays")
    final, temporary = folder / f"step_{step}", folder / f"{INCOMPLETE}step_{step}"
    replaced = folder / f"{INCOMPLETE}old_step_{step}"
    with writing(final):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in (temporary, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            temporary.mkdir()
            save(temporary)
            _seal(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space
            raise
        if final.exists():
            # Only a damaged or replayed step is ever written twice; rename cannot replace a folder that holds files.
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync(folder)
        _prune(folder, final, keep)
    return final


def check_finite(weights: Mapping[str, torch.Tensor], when: str) -> None:
    """UserError for weights that are not finite after `when`, such as "step 3"; they are not to be saved."""
    if bad := [name for name, value in weights.items() if not value.isfinite().all()]:
        raise UserError(
            f"{bad[0]} and {len(bad) - 1} other weights are not finite after {when}, so they were not saved; lower "
            "optim.learning_rate"
        )


def latest_checkpoint(folder: Path) -> Path | None:
    """The complete checkpoint with the highest step, or None; damaged ones are named in a warning and passed over."""
    for path in _by_step(folder):
        fault = find_fault(path)
        if fault is None:
            return path
        logger.warning("checkpoint %s is damaged (%s); trying the one before it", path, fault)
    return None


def checkpoint_step(path: Path) -> int:
    """The step in a checkpoint's name; ValueError when it is not one."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not named step_<number>")
    return int(match[1])


def find_fault(path: Path, digests: bool = True) -> str | None:
    """What is wrong with a checkpoint folder, in words, or None. Without digests only names and sizes are checked."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        for name, entry in files.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry["size"]:
                return f"{name} has {file.stat().st_size} bytes, the manifest says {entry['size']}"
            if digests and digest_of(file) != entry["sha256"]:
                return f"{name} differs from its SHA-256 in the manifest"
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return f"{MANIFEST} is unreadable"
    return None


def sealed_files(path: Path) -> dict[str, str]:
    """The files of a complete checkpoint, by their names in it, with their SHA-256."""
    entries = json.loads((path / MANIFEST).read_text())["files"]
    return {name: entry["sha256"] for name, entry in entries.items()}


def save_training_state(path: Path, objects: Mapping[str, Any], counters: Mapping[str, Any]) -> None:
    """Save what training needs beyond the weights to one file.

    objects: by name, a torch.Generator or anything with state_dict (optimizer, scheduler, prior, corpus).
    counters: plain data. The global random states of Python, NumPy and torch (CPU and every GPU) go along.
    """
    state = {name: _get_state(value) for name, value in objects.items()}
    torch.save(
        {
            "objects": state,
            "counters": dict(counters),
            "random": _random_state(),
            "initial_state": INITIAL_STATE_VERSION,
        },
        path,
    )


def load_training_state(path: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Restore `objects` and the global random states in place from save_training_state's file; returns the counters.

    Nothing is unpickled but tensors and plain data. A file of a version that drew other initial states is resumed with
    a warning. Raises UserError when the file is damaged or holds other objects.
    """
    with reading(path.parent, path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict):
            raise TypeError(f"wanted a training state, found a {type(saved).__name__}")
        states, counters, random_states = (dict(saved[part]) for part in ("objects", "counters", "random"))
        if set(states) != set(objects):
            raise UserError(f"{path} holds {sorted(states)}, this run needs {sorted(objects)}; start a new run")
        for name, value in objects.items():
            _set_state(value, states[name])
        _restore_random(random_states)
    if saved.get("initial_state", 1) != INITIAL_STATE_VERSION:
        logger.warning(
            "%s was saved by a version of loop-rl that drew other initial states: from here on the run differs from "
            "one that was never stopped; the states' distribution is the same",
            path,
        )
    return counters


@contextlib.contextmanager
def reading(checkpoint: Path, file: Path | None = None) -> Iterator[None]:
    """Raises UserError where what is done inside can't use a checkpoint (or a file of it) that looked complete.

    Memory that runs out is no fault of the checkpoint, which is not to be removed for it.
    """
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch, safetensors, pickle and each object's load_state_dict have their own
        cause = type_and_message(error)[:200]
        how = f"remove {checkpoint}, and --resume takes the checkpoint before it"
        raise UserError(f"cannot resume from {file or checkpoint} ({cause}); {how}") from error


def _set_state(value: Any, state: Any) -> None:
    """Give an object its state back; ValueError where tensors of an optimizer's state are not those of its weights."""
    if isinstance(value, torch.Generator):
        value.set_state(state)
        return
    value.load_state_dict(state)
    if isinstance(value, torch.optim.Optimizer):
        for parameter, moments in value.state.items():
            for name, moment in moments.items():
                if torch.is_tensor(moment) and moment.dim() and moment.shape != parameter.shape:
                    raise ValueError(f"{name} has the shape {tuple(moment.shape)}, its weight {tuple(parameter.shape)}")


def _get_state(value: Any) -> Any:
    return value.get_state() if isinstance(value, torch.Generator) else value.state_dict()


def _random_state() -> dict[str, Any]:
    _, key, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        # NumPy's own tuple holds arrays and scalars that a weights-only load refuses.
        "numpy": {"key": torch.from_numpy(key.astype(np.int64)), "rest": (int(position), int(has_gauss), float(gauss))},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _restore_random(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(("MT19937", state["numpy"]["key"].numpy().astype(np.uint32), *state["numpy"]["rest"]))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _by_step(folder: Path) -> list[Path]:
    """The folders named step_<number>, highest number first (by name, step_9 would come after step_10)."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(named, key=checkpoint_step, reverse=True)


def _prune(folder: Path, written: Path, keep: int) -> None:
    kept = {written}
    for path in _by_step(folder):
        if len(kept) < keep and find_fault(path, digests=False) is None:
            kept.add(path)
        elif path not in kept and checkpoint_step(path) < checkpoint_step(written):
            shutil.rmtree(path)
    for leftover in folder.glob(f"{INCOMPLETE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _seal(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest_of(path)} for path in files
    }
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=1) + "\n")
    sync_tree(folder)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
