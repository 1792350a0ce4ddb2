"""The folder of a run of any trainer: opening and resuming it, what is in it at the start, and the model at the end."""

import json
import logging
import platform
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
import yaml

import loop_rl
from loop_rl.errors import UserError
from loop_rl.recipe.rl import load_recipe
from loop_rl.runs.checkpoints import checkpoint_step, digest_of, latest_checkpoint, sealed_files
from loop_rl.runs.disk import INCOMPLETE, sync_tree, write_whole, writing
from loop_rl.runs.lock import LOCK
from loop_rl.runs.mirror import ID_FILE
from loop_rl.runs.rows import drop_rows_after

logger = logging.getLogger(__name__)

# What a run writes before its first step: a folder that has nothing else holds no run yet.
_BEFORE_THE_FIRST_STEP = {"recipe.yaml", "environment.json", "metrics.jsonl", "wandb", ID_FILE, LOCK}
_FOLDERS = ("checkpoints", "completions", "evals", "model")
_ROWS = ("metrics.jsonl", "evals.jsonl")


class RunRecipe(Protocol):
    """What is read of a recipe of any kind."""

    @property
    def run(self) -> Any: ...  # its section with name and folder

    def model_dump(self) -> dict[str, Any]: ...
    def dump_yaml(self) -> str: ...


def run_folder(recipe: RunRecipe) -> Path:
    """Where the recipe's run is kept."""
    return Path(recipe.run.folder) / recipe.run.name


def holds_a_run(run: Path) -> bool:
    """Whether the folder has anything to lose: a run that failed before its first step has not."""
    if not run.exists():
        return False
    names = {path.name for path in run.iterdir() if not path.name.startswith(INCOMPLETE)}
    metrics = run / "metrics.jsonl"
    return names - _BEFORE_THE_FIRST_STEP != set() or (metrics.is_file() and metrics.stat().st_size > 0)


def checkpoint_to_resume(run: Path, recipe: RunRecipe, may_change: Collection[str], resume: bool) -> Path | None:
    """The checkpoint to resume from, or None to start from the beginning.

    Args:
        may_change: keys and sections that decide no result.

    Raises:
        UserError: a folder in use, nothing to resume, or a recipe that differs in a key that decides results.
    """
    if not resume:
        if holds_a_run(run):
            raise UserError(f"{run} already holds a run: --resume goes on with it, --set run.name=... starts another")
        return None
    file = run / "recipe.yaml"
    if not file.is_file():
        raise UserError(f"there is no run to resume in {run}: check run.folder and run.name, or start without --resume")
    before = load_recipe(file, schema=type(recipe)).model_dump()
    changed = [
        f"{key} is {json.dumps(new)}, the run was started with {json.dumps(old)}"
        for key, old, new in _changes(before, recipe.model_dump())
        if not _free(key, may_change)
    ]
    if changed:
        raise UserError(f"{run} can't be resumed: {'; '.join(changed)}; undo the change, or start a new run")
    checkpoint = latest_checkpoint(run / "checkpoints")
    if checkpoint is None:
        logger.warning("%s has no complete checkpoint; starting from the beginning", run)
    else:
        logger.info("resuming %s from step %d", run, checkpoint_step(checkpoint))
    return checkpoint


def is_finished(checkpoint: Path | None, max_steps: int) -> bool:
    """Whether the checkpoint is the last one that the recipe asks for."""
    return checkpoint is not None and checkpoint_step(checkpoint) >= max_steps


def say_finished(run: Path, checkpoint: Path, max_steps: int) -> None:
    """Tells the user that there is nothing left to train."""
    done = checkpoint_step(checkpoint)
    print(f"loop-rl: {run} is finished ({done} of {max_steps} steps): nothing to do", file=sys.stderr)


def warn_of_schedule(run: Path, key: str, max_steps: int) -> None:
    """Says so where a run whose learning rate follows its length is resumed with another length."""
    section, name = key.split(".")
    before = saved_recipe(run)[section][name]
    if before != max_steps:
        logger.warning(
            "%s is %s, the run was started with %s: from here on the learning rate follows the new length, so the "
            "result is not that of a run that had it from the start",
            key,
            max_steps,
            before,
        )


def start_run(run: Path, recipe: RunRecipe, device: torch.device, step: int | None) -> None:
    """Writes what a run folder holds from the start, and takes away what comes after the checkpoint's step.

    step: None where the run starts from the beginning. Raises UserError where the disk refuses, or a file is in the
    place of a folder.
    """
    for name in _FOLDERS:
        if (run / name).exists() and not (run / name).is_dir():
            raise UserError(f"{run / name} is a file where the run keeps a folder; move it away")
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
        for leftover in [*run.glob(f"{INCOMPLETE}*"), *run.glob(f"*/{INCOMPLETE}*")]:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        write_whole(run / "recipe.yaml", recipe.dump_yaml())
        write_whole(run / "environment.json", json.dumps(environment(device), indent=1) + "\n")
        for name in _ROWS:
            drop_rows_after(run / name, step)


def record_placement(run: Path, learner: str, ranks: int, rollout: Sequence[tuple[str, list[str]]]) -> None:
    """Adds to environment.json where the learner and each rollout worker compute.

    learner: the device of its main rank, of `ranks`. rollout: a node's name and the ids of its GPUs for each worker.
    """
    file = run / "environment.json"
    placement = {
        "learner": {"node": platform.node(), "device": learner, "ranks": ranks},
        "rollout": [{"node": node, "gpus": gpus} for node, gpus in rollout],
    }
    with writing(file):
        values = json.loads(file.read_text(encoding="utf-8")) | {"placement": placement}
        write_whole(file, json.dumps(values, indent=1) + "\n")


def publish_model(run: Path, checkpoint: Path, beside: Collection[str] = ()) -> bool:
    """Make the checkpoint's model the run's, in its subfolder `model`; returns whether it was not there already.

    beside: names of files of the checkpoint's model folder that are the trainer's own.
    """
    wanted = {
        name.removeprefix("model/"): digest
        for name, digest in sealed_files(checkpoint).items()
        if name.startswith("model/") and Path(name).name not in beside
    }
    model, temporary, old = run / "model", run / f"{INCOMPLETE}model", run / f"{INCOMPLETE}old_model"
    if all((model / name).is_file() and digest_of(model / name) == digest for name, digest in wanted.items()):
        return False
    with writing(model):
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            shutil.copytree(checkpoint / "model", temporary, ignore=shutil.ignore_patterns(*beside))
            sync_tree(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # its space is needed
            raise
        if model.exists():
            model.rename(old)
        temporary.rename(model)
    shutil.rmtree(old, ignore_errors=True)
    return True


def saved_recipe(run: Path) -> dict[str, Any]:
    """The sections of the recipe that the run was started with; UserError where its file is damaged."""
    file = run / "recipe.yaml"
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file} is no recipe, so {run} is not the folder of a run")
    return values


def environment(device: torch.device) -> dict[str, Any]:
    """What environment.json of a run folder holds."""
    return {
        "loop_rl": loop_rl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }


def _free(key: str, may_change: Collection[str]) -> bool:
    """Whether a key, or a section that it is in, is among those that may change."""
    parts = key.split(".")
    return any(".".join(parts[:end]) in may_change for end in range(1, len(parts) + 1))


def _changes(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys in which two recipes differ, with both values; a section that one lacks is one key."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**now, **before}:
            yield from _changes(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield key, before, now
