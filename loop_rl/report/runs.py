"""Run folders read back: recipe.yaml, metrics.jsonl, evals.jsonl, also of runs that are damaged or still going.

What can't be read is named, as a note of its run or as a folder that is left out; the rest is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loop_rl.errors import UserError
from loop_rl.runs.rows import is_number, read_rows

TEXT_KINDS = ("pretrain", "sft", "distill")


@dataclass(frozen=True)
class RunLog:
    """One run. `metrics` and `evals` hold the last row written for each step, in order of steps.

    kind: the command that made it: train, pretrain, sft or distill. `evals`: of a run of RL, on its own data; of
    others, on whatever they were last evaluated on. notes: what could not be read.
    """

    folder: Path
    kind: str
    recipe: dict[str, Any]  # dotted key -> value
    metrics: dict[int, dict[str, Any]]
    evals: dict[int, dict[str, Any]]
    notes: tuple[str, ...] = ()

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
    def last_step(self) -> int:
        return max(self.metrics, default=0)

    @property
    def last_eval(self) -> int | None:
        """The last step at which it was evaluated."""
        return max(self.evals, default=None)

    def series(self, key: str) -> dict[int, float]:
        """A metric by step, where it was written and is finite."""
        return {step: float(row[key]) for step, row in self.metrics.items() if is_number(row.get(key))}


def read_runs(folders: Sequence[str | Path]) -> tuple[list[RunLog], list[str]]:
    """The runs in the folders, a folder of run folders standing for all of them; and a line for each left out.

    Raises UserError for a folder that does not exist, and where no run can be read.
    """
    found, left_out = _run_folders(folders)
    runs = []
    for folder in found:
        try:
            runs.append(_read_run(folder))
        except UserError as error:
            left_out.append(f"left out: {error}")
    if not runs:
        raise UserError(
            "; ".join(line.removeprefix("left out: ") for line in left_out) or "no run folder was given to report on"
        )
    return runs, left_out


def _run_folders(folders: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    found: dict[Path, Path] = {}
    left_out = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"there is no run folder {folder}; a run's folder is <run.folder>/<run.name> of its recipe")
        here = [folder] if _looks_like_a_run(folder) else []
        inside = here or sorted({file.parent for name in _FILES for file in folder.glob(f"*/{name}")})
        if not inside and not any(folder.iterdir()):
            left_out.append(f"left out: {folder} is empty: no run folder")
        elif not inside:
            models = "; --evals shows evaluations of models" if (folder / "evals.jsonl").is_file() else ""
            left_out.append(
                f"left out: {folder} is not a run folder: neither it nor a folder in it has a recipe.yaml{models}"
            )
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values()), left_out


_FILES = ("recipe.yaml", "metrics.jsonl")


def _looks_like_a_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in _FILES)


def _read_run(folder: Path) -> RunLog:
    """Raises UserError where the recipe can't be read: without it nothing says what the numbers are of."""
    file = folder / "recipe.yaml"
    try:
        sections = yaml.safe_load(file.read_text(encoding="utf-8"))
        recipe = _flatten(sections)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"cannot read {file}: {' '.join(str(error).split())}") from None
    kind = _kind(sections, recipe)
    if kind is None:
        raise UserError(f"{file} is not the recipe of a run of loop-rl train, pretrain, sft or distill")
    for key in ("learner.estimator", "data.name") if kind == "train" else ():
        if recipe.get(key) is None:
            raise UserError(f"{file} does not say {key}, so {folder} is not the folder of an RL run")
    metrics, damage = readable_rows(folder / "metrics.jsonl")
    evals, damaged_evals = readable_rows(folder / "evals.jsonl")
    notes = damage + damaged_evals
    if kind == "train":
        evals, foreign = _own(evals, str(recipe["data.name"]))
        notes += foreign
    return RunLog(folder, kind, recipe, _by_step(metrics), _by_step(evals), tuple(notes))


def _kind(sections: Any, recipe: dict[str, Any]) -> str | None:
    if not isinstance(sections, dict):
        return None
    if "learner" in sections:
        return "train"
    if "teacher" in sections:
        return "distill"
    if "prior" in sections:
        return "sft" if "model.path" in recipe else "pretrain"
    return None


def _own(evals: list[dict[str, Any]], data: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The evaluations that are part of a run's own curve: of its own data, made while it trained."""
    if any("by" not in row for row in evals):  # later evaluations by hand may have used other questions or samples
        evals = [row for row in evals if "by" not in row]
    names = {str(row.get("data")) for row in evals}
    if data in names:
        return [row for row in evals if str(row.get("data")) == data], []
    if len(names) > 1:
        return [], [f"evals.jsonl has evaluations on {', '.join(sorted(names))}, none on the run's own data, {data}"]
    return evals, []


def readable_rows(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a JSON-lines file that has a row per step, and a line for what could not be read of it."""
    try:
        rows, faults = read_rows(file)
    except UserError as error:
        return [], [str(error)]
    damaged = f"{len(faults)} damaged line{'s' * (len(faults) > 1)} skipped"
    return rows, [f"{file.name}: {damaged} ({faults[0]})"] if faults else []


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
