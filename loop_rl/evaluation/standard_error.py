"""The one standard error of a mean over questions and training seeds, and of a difference of two such means.

Questions and training seeds are crossed: S runs answer the same Q questions. With x[s, q] a run's share of a question,

    x[s, q] = mean + seed[s] + question[q] + rest[s, q]      rest: how this run differs on this question, and sampling

and the mean over both varies, from one draw of questions and seeds to another, by

    Var(mean) = Var(question)/Q + Var(seed)/S + Var(rest)/(S Q).

The part between seeds is B = s²(means of the runs)/S, whose expectation is Var(seed)/S + Var(rest)/(S Q). The part
between questions is A = s²(means of the questions)/Q less the share of the rest that it has in common with B, which is
E = MS(rest)/(S Q), the mean square of the two-way analysis of variance. A + B is unbiased (Cornfield and Tukey, 1956;
the same as clustering by both, Cameron, Gelbach and Miller, 2011) but for A being held at 0 or above. Samples of one
question are averaged first, so the question is the cluster (Miller, 2024, "Adding error bars to evals").

One run says nothing of seeds: then A = s²(questions)/Q alone, the error of this run's pass@k, rest included.

The 95 % interval's half width is √(t²(Q−1) A + Σ t²(S−1) B), Student's t for each part by its own degrees of freedom:
with few seeds it is much wider than 1.96 standard errors, and covers at least as often as it says (half widths added
in quadrature: Howe, 1974; the tests measure the coverage).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

QUESTIONS = "questions"
BOTH = "questions and seeds"


@dataclass(frozen=True)
class Estimate:
    """A mean (or a difference of two), its standard error and 95 % interval; None where there is too little to say.

    `over` says what the error includes: QUESTIONS, or BOTH.
    """

    mean: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    over: str | None = None


def estimate(values: np.ndarray) -> Estimate:
    """The mean of float64 [runs, questions], finite, and its error."""
    return _contrast([values], [1.0])


def difference(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """mean(ours) − mean(theirs), both float64 [runs, questions] on the same questions in the same order.

    Paired by question: what makes a question hard for both is in neither's error. Training seeds are independent.
    """
    if ours.shape[1] != theirs.shape[1]:
        raise ValueError(f"{ours.shape[1]} and {theirs.shape[1]} questions can't be paired")
    return _contrast([ours, theirs], [1.0, -1.0])


def from_stored(means: Sequence[float], errors: Sequence[float]) -> Estimate:
    """For runs whose questions' own results are lost: from each run's mean, and its error over the same questions.

    Larger than `estimate` would say, since each error includes its run's rest, as the part between seeds does.
    """
    if not means or len(errors) != len(means):
        return Estimate(math.fsum(means) / len(means) if means else None)
    seeds = [(float(np.var(means, ddof=1)) / len(means), len(means) - 1)] if len(means) > 1 else []
    questions = math.fsum(error**2 for error in errors) / len(errors)
    return _estimate(math.fsum(means) / len(means), (questions, math.inf), seeds)


def _contrast(groups: Sequence[np.ndarray], signs: Sequence[float]) -> Estimate:
    questions = groups[0].shape[1]
    if not questions or not all(len(group) for group in groups):
        return Estimate()
    by_question = sum(sign * group.mean(0) for sign, group in zip(signs, groups, strict=True))
    mean = float(by_question.mean())
    if questions < 2:
        return Estimate(mean)
    between_questions = float(by_question.var(ddof=1)) / questions
    between_seeds = []
    for group in groups:
        runs = len(group)
        if runs < 2:
            continue
        between_seeds.append((float(group.mean(1).var(ddof=1)) / runs, runs - 1))
        rest = group - group.mean(0) - group.mean(1, keepdims=True) + group.mean()
        between_questions -= float((rest**2).sum()) / ((runs - 1) * (questions - 1)) / (runs * questions)
    return _estimate(mean, (max(between_questions, 0.0), questions - 1), between_seeds)


def _estimate(mean: float, questions: tuple[float, float], seeds: Sequence[tuple[float, float]]) -> Estimate:
    """From the parts of the variance, each with its degrees of freedom."""
    parts = [questions, *seeds]
    half = math.sqrt(sum(student_t(freedom) ** 2 * variance for variance, freedom in parts))
    error = math.sqrt(sum(variance for variance, _ in parts))
    return Estimate(mean, error, mean - half, mean + half, BOTH if seeds else QUESTIONS)


@functools.lru_cache(maxsize=1024)
def student_t(freedom: float) -> float:
    """The two-sided 95 % point of Student's t for whole degrees of freedom, or math.inf (the normal's)."""
    if freedom > 10_000:
        return 1.959964  # off by less than 3e-4 at 10,000
    low, high = 1.9, 12.8
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, int(freedom)) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """The chance of |T| < t; Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for j in range(1 + odd, freedom, 2):
        total += term
        term *= j / (j + 1) * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
