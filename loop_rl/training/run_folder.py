"""What every training command does with its run folder."""

import platform
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import loop_rl
from loop_rl.errors import UserError
from loop_rl.training.lock import LOCK

# What a run writes before its first step: a folder that has nothing else holds no run yet.
_BEFORE_THE_FIRST_STEP = {"recipe.yaml", "environment.json", "metrics.jsonl", "wandb", LOCK}


def holds_a_run(run: Path) -> bool:
    """Whether the folder has anything to lose: a run that failed before its first step has not."""
    if not run.exists():
        return False
    metrics = run / "metrics.jsonl"
    return {path.name for path in run.iterdir()} - _BEFORE_THE_FIRST_STEP != set() or (
        metrics.is_file() and metrics.stat().st_size > 0
    )


def progress_bar(progress: bool) -> Progress:
    """A bar with a description, the count and the time left; silent unless `progress`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not progress)


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
