"""What samples say: pass@k with standard errors, mean reward, and how many were cut, empty-handed or not scored."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loop_rl.evaluation.pass_at_k import pass_at_k
from loop_rl.evaluation.standard_error import estimate

# Columns that an evaluation is broken down by, where the data set has them.
BREAKDOWNS = ("level", "subject")
NO_ANSWER = "no answer"


@dataclasses.dataclass(frozen=True)
class EvalMetrics:
    """Metrics of some questions' samples.

    passes: by k (1 and the powers of two up to the samples of a question), the mean of pass@k over the questions that
    have k scored samples, and its standard error (loop_rl.evaluation.standard_error); None where there are too few.
    reward: mean over scored samples. truncated, no_answer: shares of all samples that were cut at the length cap, and
    in which the reward found no answer (None: it does not say). not_scored: samples without a reward. mean_depth:
    recurrences of a token, averaged over samples.
    """

    passes: dict[int, tuple[float | None, float | None]]
    reward: float | None
    questions: int
    truncated: float
    no_answer: float | None
    not_scored: int
    mean_depth: float


def metrics_of(rows: Sequence[dict[str, Any]], samples: int) -> EvalMetrics:
    """The metrics of rows as evaluate makes them: `samples` of each question, one question after another."""
    counts = []
    for start in range(0, len(rows), samples):
        scored = [row["correct"] for row in rows[start : start + samples] if row["correct"] is not None]
        counts.append((len(scored), sum(scored)))
    passes = {
        k: _mean_and_error([pass_at_k(scored, correct, k) for scored, correct in counts if scored >= k])
        for k in powers_of_two(samples)
    }
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    reasons = [row["reason"] for row in rows if row["reason"] is not None]
    return EvalMetrics(
        passes=passes,
        reward=math.fsum(reward / len(rewards) for reward in rewards) if rewards else None,
        questions=len(counts),
        truncated=sum(row["finish_reason"] == "length" for row in rows) / len(rows),
        no_answer=sum(reason.startswith(NO_ANSWER) for reason in reasons) / len(rows) if reasons else None,
        not_scored=len(rows) - len(rewards),
        mean_depth=sum(row["mean_depth"] for row in rows) / len(rows),
    )


def _mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    found = estimate(np.array([values], dtype=np.float64))
    return found.mean, found.error


def breakdown(rows: Sequence[dict[str, Any]], samples: int) -> dict[str, dict[str, EvalMetrics]]:
    """The metrics of each level and each subject that rows have; values in order, numbers before words."""
    parts: dict[str, dict[str, EvalMetrics]] = {}
    for column in BREAKDOWNS:
        values = sorted({row[column] for row in rows if row.get(column) is not None}, key=_in_order)
        if values:
            parts[column] = {v: metrics_of([row for row in rows if row.get(column) == v], samples) for v in values}
    return parts


def _in_order(value: str) -> tuple[bool, int, str]:
    return not value.isdecimal(), int(value) if value.isdecimal() else 0, value


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to the limit."""
    return [2**exponent for exponent in range(limit.bit_length())]
