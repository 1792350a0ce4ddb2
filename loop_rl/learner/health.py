"""Whether the reused states are still close to fixed points: limits on an update's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loop_rl.fixed_point import Estimator, parse_estimator

if TYPE_CHECKING:
    from loop_rl.recipe.rl import HealthSection


def breach(metrics: Mapping[str, float | None], limits: HealthSection) -> str | None:
    """What is past its limit, in words, or None. What was not measured, or is undefined (None), breaks no limit; NaN
    breaks any."""
    found = []
    for name, limit, sign in (
        ("residual/q90", limits.max_residual, 1),
        ("neumann/term_ratio", limits.max_term_ratio, 1),
        ("gradient/cosine", limits.min_cosine, -1),
        ("sampling/replay_logp_difference", limits.max_replay_difference, 1),
    ):
        value = metrics.get(name)
        if limit is not None and value is not None and not sign * (value - limit) <= 0:
            found.append(f"{name} is {value:.3g}, its limit {limit:g}")
    return "; ".join(found) or None


def recomputing(estimator: Estimator) -> Estimator:
    """The same series at endpoints rebuilt by the learner."""
    return parse_estimator(estimator.name.replace("reuse", "recompute", 1))
