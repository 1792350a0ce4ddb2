"""What an update cost: of the updates that learned, the seconds, and the tokens learned from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loop_rl.report.runs import RunLog
from loop_rl.runs.rows import is_number, value_of

COUNTED = "counted"


@dataclass(frozen=True)
class Updates:
    """Of some runs: a step whose update was skipped counts in `steps` alone.

    Times are medians in seconds; each run's first update is in neither, because it pays for warming up, nor are those
    that learned by another estimator after a health limit was passed. An update is scoring and backward, over the
    iterations of its step together.

    steps: steps made. learned: those whose update changed the weights. tokens: of the completions that these learned
    from; None where a run does not say. tokens_from: COUNTED, or in runs without the count the metrics that it is
    estimated from.
    """

    steps: int
    learned: int
    tokens: float | None
    tokens_from: str | None
    time: float | None
    time_per_token: float | None


def updates(runs: Sequence[RunLog]) -> Updates:
    """Over all steps of the runs."""
    learned, timed, sources = [], [], set()
    for run in runs:
        iterations = int(value_of(run.recipe, "learner.num_iterations") or 1)
        rows = [row for row in run.metrics.values() if _learned(row)]
        counts = [_tokens(row, iterations) for row in rows]
        sources |= {source for _, source in counts}
        learned += [tokens for tokens, _ in counts]
        first = next(iter(rows), None)
        timed += [
            (value_of(row, "time/update"), tokens)
            for row, (tokens, _) in zip(rows, counts, strict=True)
            if row is not first and not recomputed(row)
        ]
    times = [seconds for seconds, _ in timed if seconds is not None]
    rates = [seconds / tokens for seconds, tokens in timed if seconds is not None and tokens]
    known = None not in learned and bool(learned)
    return Updates(
        steps=sum(len(run.metrics) for run in runs),
        learned=len(learned),
        tokens=sum(learned) if known else None,
        tokens_from=", ".join(sorted(sources)) if known else None,
        time=statistics.median(times) if times else None,
        time_per_token=statistics.median(rates) if known and rates else None,
    )


def median_step(runs: Sequence[RunLog]) -> float | None:
    """The median seconds of a step, skipped updates included, without the first step of each run."""
    times = [
        value for run in runs for step, value in run.series("time/step").items() if step != min(run.metrics, default=0)
    ]
    return statistics.median(times) if times else None


def speed_up(base: Updates, ours: Updates) -> float | None:
    """The baseline's seconds per learned token over ours; of whole updates where a count of tokens is missing."""
    if base.time_per_token and ours.time_per_token:
        return base.time_per_token / ours.time_per_token
    return base.time / ours.time if base.time and ours.time else None


def recomputed(row: dict[str, Any]) -> bool:
    """Whether the run had turned from reuse to recomputation (health.on_breach: recompute)."""
    return bool(value_of(row, "health/recomputes"))


def _learned(row: dict[str, Any]) -> bool:
    """Whether the step changed the weights: no update of it was skipped, and there was something to learn from."""
    return not value_of(row, "skipped_update") and value_of(row, "completions/learned_from") != 0


def _tokens(row: dict[str, Any], iterations: int) -> tuple[float | None, str | None]:
    """Tokens scored in the step's updates, and where the number is from."""
    if is_number(row.get("completions/learned_tokens")):
        return float(row["completions/learned_tokens"]), COUNTED
    completions, length = value_of(row, "completions/learned_from"), value_of(row, "completions/mean_length")
    if completions is not None and length is not None:
        return iterations * completions * length, "completions/learned_from x completions/mean_length"
    tokens = value_of(row, "tokens")
    return (None, None) if tokens is None else (iterations * tokens, "tokens")
