"""Run folders read back: recipe.yaml, metrics.jsonl, evals.jsonl, also of runs that were killed or are still going."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError

# Keys in which two runs of one setting may differ: which sample of the setting they are, and where they leave it.
_OF_THE_SAMPLE = {
    "run.name",
    "run.folder",
    "run.seed",
    "run.save_steps",
    "run.keep_checkpoints",
    "run.wandb",
    "data.seed",
    "data.folder",
}


@dataclass(frozen=True)
class Run:
    """One run. `metrics` and `evals` hold the last row written for each step, in order of steps."""

    folder: Path
    recipe: dict[str, Any]  # dotted key -> value
    metrics: dict[int, dict[str, Any]]
    evals: dict[int, dict[str, Any]]
    torn_lines: int

    @property
    def estimator(self) -> str:
        return str(self.recipe["learner.estimator"])

    @property
    def data(self) -> str:
        return str(self.recipe["data.name"])

    @property
    def seed(self) -> tuple[Any, Any]:
        return self.recipe.get("run.seed", 0), self.recipe.get("data.seed", 0)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the run but its seeds and its estimator; as text, so that lists compare and hash."""
        left_out = _OF_THE_SAMPLE | {"learner.estimator"}
        return {key: str(value) for key, value in self.recipe.items() if key not in left_out}

    def series(self, key: str) -> dict[int, float]:
        """A metric by step, where it was written and is finite."""
        return {step: float(row[key]) for step, row in self.metrics.items() if is_number(row.get(key))}


@dataclass(frozen=True)
class Group:
    """The runs of one estimator on one setting, which differ in their seeds only."""

    label: str
    runs: tuple[Run, ...]

    @property
    def estimator(self) -> str:
        return self.runs[0].estimator

    @property
    def data(self) -> str:
        return self.runs[0].data

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def run_folders(folders: Sequence[str | Path]) -> list[Path]:
    """Each run folder; a folder of run folders stands for all of them. Raises UserError where there is none.

    An empty folder is what a run that failed at its start may leave: it is passed over.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"there is no run folder {folder}; a run's folder is <run.folder>/<run.name> of its recipe")
        if (folder / "recipe.yaml").is_file():
            found.setdefault(folder.resolve(), folder)
            continue
        inside = sorted(path.parent for path in folder.glob("*/recipe.yaml"))
        if not inside and len(folders) > 1 and not any(folder.iterdir()):
            continue
        if not inside:
            raise UserError(
                f"{folder} is not a run folder: neither it nor a folder in it has a recipe.yaml"
                f"{'; --evals shows evaluations of models' if (folder / 'evals.jsonl').is_file() else ''}"
            )
        for run in inside:
            found.setdefault(run.resolve(), run)
    if not found:
        raise UserError("no run folder was given to report on")
    return list(found.values())


def read_runs(folders: Sequence[str | Path]) -> list[Run]:
    """Reads the folders of runs of RL. Raises UserError for one of another kind."""
    return [_read_run(folder) for folder in run_folders(folders)]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs pooled over seeds. Where an estimator ran on several settings, its labels name what they differ in."""
    pools: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        pools.setdefault((run.data, run.estimator, tuple(sorted(run.settings.items()))), []).append(run)
    groups = []
    for (data, estimator, _), members in pools.items():
        rivals = [pool[0].settings for key, pool in pools.items() if key[:2] == (data, estimator)]
        own = members[0].settings
        differing = sorted({key for rival in rivals for key in differences(own, rival)})
        told = ", ".join(f"{key}={own.get(key)}" for key in differing)
        groups.append(Group(f"{estimator} ({told})" if told else estimator, tuple(members)))
    return sorted(groups, key=lambda group: (group.data, _rank(group.estimator), group.estimator, group.label))


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def _rank(estimator: str) -> int:
    """Controls first, from the dearest, then reuse."""
    kinds = ("full", "truncated", "recompute", "reuse")
    return next((rank for rank, kind in enumerate(kinds) if estimator.startswith(kind)), len(kinds))


def _read_run(folder: Path) -> Run:
    file = folder / "recipe.yaml"
    try:
        recipe = _flatten(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read {file}: {' '.join(str(error).split())}") from None
    for key in ("learner.estimator", "data.name"):
        if recipe.get(key) is None:
            raise UserError(f"{file} does not say {key}, so {folder} is not the folder of an RL run")
    metrics, torn = read_rows(folder / "metrics.jsonl")
    evals, torn_evals = read_rows(folder / "evals.jsonl")
    if any("by" not in row for row in evals):  # later evaluations by hand may have used other questions or samples
        evals = [row for row in evals if "by" not in row]
    names = {row.get("data") for row in evals}
    if recipe["data.name"] in names:  # a later evaluation on other data is no part of this run's curve
        evals = [row for row in evals if row.get("data") == recipe["data.name"]]
    elif len(names) > 1:
        raise UserError(
            f"{folder / 'evals.jsonl'} has evaluations on {', '.join(sorted(map(str, names)))}"
            f" but none on the run's own data, {recipe['data.name']}"
        )
    return Run(folder, recipe, _by_step(metrics), _by_step(evals), torn + torn_evals)


def read_rows(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of a JSON-lines file and the number of lines that are none.

    A run killed mid-write leaves a torn line: the last, or, once it was resumed, one in the middle. A file without
    a single good line but with bad ones is something else, and refused.
    """
    if not file.exists():
        return [], 0
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    rows, torn = [], 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and is_number(row.get("step")):
            rows.append(row)
        else:
            torn += 1
    if not rows and torn > 1:
        raise UserError(f"{file}: none of its {torn} lines is a JSON object with a step")
    return rows, torn


def _by_step(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    # A resumed run writes the steps after its checkpoint again: the later row is the one that led to the weights.
    return dict(sorted({int(row["step"]): row for row in rows}.items()))


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
