"""Runs' held-out answers by question, and what they say of pass@k with its standard error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loop_rl.evaluation.pass_at_k import pass_at_k
from loop_rl.evaluation.standard_error import Estimate, difference, estimate, from_stored
from loop_rl.report.runs import RunLog
from loop_rl.runs.rows import value_of


@dataclass(frozen=True)
class Answers:
    """One evaluation by question: (scored samples, right ones) of each, by a digest of the question."""

    counts: dict[str, tuple[int, int]]

    @property
    def questions(self) -> str:
        """The same for the same set of questions."""
        return hashlib.sha256("".join(sorted(self.counts)).encode()).hexdigest()

    def passes(self, k: int) -> dict[str, float]:
        """pass@k by question, of those with k scored samples."""
        return {name: pass_at_k(n, c, k) for name, (n, c) in self.counts.items() if n >= k}


def read_answers(run: RunLog, step: int) -> Answers | None:
    """The answers of a run's evaluation; None where its samples are lost, damaged, or of another evaluation."""
    row = run.evals.get(step, {})
    name = row.get("file")
    if not isinstance(name, str):
        return None
    counts = _counts(run.folder / name)
    if not counts:
        return None
    answers = Answers(counts)
    shares, said = list(answers.passes(1).values()), value_of(row, "pass@1")
    found = math.fsum(shares) / len(shares) if shares else None
    if (found is None) != (said is None) or (said is not None and abs(found - said) > 1e-9):
        return None
    return answers


def _counts(file: Path) -> dict[str, tuple[int, int]]:
    """Empty where the file can't be read."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file, columns=["index", "prompt", "answer", "correct"])
        columns = [column.to_pylist() for column in table.columns]
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return {}
    counts: dict[str, tuple[int, int]] = {}
    names: dict[tuple[object, ...], str] = {}
    for *question, correct in zip(*columns, strict=True):
        key = tuple(question)
        name = names.get(key) or names.setdefault(key, hashlib.sha256(repr(key).encode()).hexdigest()[:16])
        scored, right = counts.get(name, (0, 0))
        counts[name] = (scored + (correct is not None), right + bool(correct))
    return counts


@dataclass(frozen=True)
class Measured:
    """Evaluations of one model, or of models that differ in their training seed, on the same questions.

    values: float64 [runs, questions], by question; None where a run's answers are lost, and then `estimate` is made
    from the stored means and errors. unscored: questions left out, as a run has fewer than k scored samples of them.
    """

    estimate: Estimate
    values: dict[str, np.ndarray] | None = None
    unscored: int = 0


def measure(runs: Sequence[RunLog], step: int, k: int, one_model: bool = False) -> Measured:
    """pass@k of the runs that were evaluated at the step.

    one_model: they measured one and the same model, so what they answered is averaged and no seed has a part in the
    error.
    """
    rows = [(run, run.evals[step]) for run in runs if step in run.evals]
    means = [mean for _, row in rows if (mean := value_of(row, f"pass@{k}")) is not None]
    errors = [error for _, row in rows if (error := value_of(row, f"stderr@{k}" if k > 1 else "stderr")) is not None]
    answers = [read_answers(run, step) for run, _ in rows]
    known = [one for one in answers if one is not None]
    if len(known) < len(answers) or len({one.questions for one in known}) > 1:
        if one_model and means and errors:
            means, errors = [math.fsum(means) / len(means)], [math.fsum(errors) / len(errors)]
        return Measured(from_stored(means, errors))
    if not known:
        return Measured(Estimate())
    passes = [one.passes(k) for one in known]
    shared = sorted(set.intersection(*(set(one) for one in passes)))
    values = {name: np.array([one[name] for one in passes]) for name in shared}
    if one_model:
        values = {name: column.mean(keepdims=True) for name, column in values.items()}
    found = estimate(_matrix(values, shared))
    return Measured(found, values, len(known[0].counts) - len(shared))


def paired(ours: Measured, theirs: Measured) -> Estimate | None:
    """The difference of two on the questions that both have; None where they are not the same or are not known."""
    if ours.values is None or theirs.values is None:
        return None
    shared = sorted(ours.values.keys() & theirs.values.keys())
    lost = max(len(ours.values) + ours.unscored, len(theirs.values) + theirs.unscored) - len(shared)
    if not shared or lost > ours.unscored + theirs.unscored:
        return None
    return difference(_matrix(ours.values, shared), _matrix(theirs.values, shared))


def _matrix(values: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.stack([values[name] for name in names], axis=1) if names else np.zeros((1, 0))
