"""Whether updates are finite, and the reused states still close to fixed points: limits on a run's metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from loop_rl.errors import UserError
from loop_rl.learner.batch import Sample
from loop_rl.learner.metrics import Metrics
from loop_rl.learner.ranks import Ranks
from loop_rl.learner.update import Learner

if TYPE_CHECKING:
    from loop_rl.recipe.rl import HealthSection

log = logging.getLogger(__name__)

# One update that is not finite is skipped; so many in a row mean that the weights themselves are bad.
MAX_NOT_FINITE_IN_A_ROW = 3


class Health:
    """Measures what a run's section `health` asks for, and watches its updates.

    breached: what was past its limit in the last step, in words. not_finite_in_a_row: the last updates, of those that
    had something to learn from, whose gradient was not finite.
    """

    def __init__(self, limits: HealthSection, comparable: bool = True) -> None:
        """comparable: whether a replay gives the states that a sampler saves."""
        self.limits, self.comparable = limits, comparable
        self.breached: str | None = None
        self.not_finite_in_a_row = 0

    def measure(self, learner: Learner, samples: list[Sample], step: int) -> Metrics:
        """On the steps that ask for it: the estimator's gradient against full BPTT's, and, when states are reused, the
        sampler's log-probabilities against replayed ones; and the time that this took."""
        limits, found, start = self.limits, {}, time.perf_counter()
        if limits.cosine_steps and step % limits.cosine_steps == 0:
            found["gradient/cosine"] = learner.gradient_cosine(samples)
        replayed = learner.estimator.needs_states and self.comparable
        if replayed and limits.replay_steps and step % limits.replay_steps == 0:
            found["sampling/replay_logp_difference"] = learner.replay_difference(samples)
        return {**found, "time/measure": time.perf_counter() - start}

    def count(self, update: Metrics) -> None:
        """Takes an update's metrics; a batch without a signal is no fault."""
        if update["completions/learned_from"]:
            self.not_finite_in_a_row = self.not_finite_in_a_row + 1 if update["skipped_update"] else 0

    def check(self, metrics: Metrics, step: int, ranks: Ranks) -> bool:
        """Looks for what is past its limit, on all ranks; the main one, which has all metrics, decides. Returns whether
        the recipe asks to recompute for it."""
        self.breached = ranks.from_main(lambda: breach(metrics, self.limits))
        if self.breached is not None:
            log.warning("step %d: %s", step, self.breached)
        return self.breached is not None and self.limits.on_breach == "recompute"

    def stop_where_learning_failed(self, step: int, newest: Path | None, save: Callable[[], Path]) -> None:
        """UserError where updates fail in a row, or a limit that ends the run is passed, for which `save` is called.

        newest: the last checkpoint; weights whose updates fail may be bad already, and are not saved.
        """
        if self.not_finite_in_a_row >= MAX_NOT_FINITE_IN_A_ROW:
            kept = f"the last checkpoint is {newest}" if newest else "no checkpoint was saved"
            raise UserError(
                f"stopped after step {step}: {self.not_finite_in_a_row} updates in a row had a gradient that is not "
                f"finite; {kept}; lower optim.learning_rate"
            )
        if self.breached is not None and self.limits.on_breach == "stop":
            raise UserError(
                f"stopped after step {step}, whose {self.breached} (section health); {save()} is complete: raise the "
                "limit, or start a run with another learner.estimator from its model"
            )


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
