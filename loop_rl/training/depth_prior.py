"""The distribution of training depths: one depth R is drawn for every micro-batch of pretraining."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from loop_rl.errors import UserError

# The trapezoid rule converges geometrically on a smooth integrand with Gaussian tails: at this spacing its error is
# below float64 rounding for every sigma a recipe may name.
_GRID_POINTS = 2001
_GRID_HALF_WIDTH = 10.0
_SIGMA_LIMIT = 3.0


class DepthPrior(Protocol):
    """What pretraining asks of a prior. A learned one follows the losses; the others only look on."""

    @property
    def probabilities(self) -> Tensor:
        """[cap] float64; entry r − 1 is the probability of depth r."""
        ...

    def draw(self, generator: torch.Generator) -> int:
        """One depth in 1..cap."""
        ...

    def observe(self, depths: Sequence[int], losses: Sequence[float], tokens: Sequence[int]) -> None:
        """What one update's micro-batches came to: depth, mean cross-entropy and tokens of each."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FrozenPrior:
    """Depths drawn from a distribution that never changes."""

    def __init__(self, probabilities: Tensor) -> None:
        """probabilities: [cap] float64; entry r − 1 is P(R = r)."""
        self.probabilities = probabilities

    def draw(self, generator: torch.Generator) -> int:
        """One depth in 1..cap; a fixed depth leaves the generator untouched."""
        if bool(self.probabilities[-1] == 1):
            return len(self.probabilities)
        return draw_depth(self.probabilities, generator)

    def observe(self, depths: Sequence[int], losses: Sequence[float], tokens: Sequence[int]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"probabilities": self.probabilities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError when the state belongs to another distribution."""
        saved = state["probabilities"]
        if saved.shape != self.probabilities.shape or not torch.allclose(saved, self.probabilities):
            raise UserError("the checkpoint was made with another depth prior than the recipe's section prior gives")


def mean_depth(prior: DepthPrior) -> int:
    """The whole number next to the mean: the depth that a model trained at the prior's depths is saved with."""
    depths = torch.arange(1, len(prior.probabilities) + 1, dtype=torch.float64)
    return round(float(prior.probabilities.double() @ depths))


def draw_depth(p: Tensor, generator: torch.Generator) -> int:
    """One depth in 1..len(p) with probabilities p, by inversion, so that it costs one number of the generator."""
    uniform = torch.rand((), generator=generator, dtype=torch.float64)
    return min(int(torch.searchsorted(p.cumsum(0), uniform, right=True)) + 1, len(p))


def fixed(depth: float) -> Tensor:
    """[depth] float64, all mass on the last entry."""
    if depth < 1 or depth != int(depth):
        raise UserError(f"prior.mean is {depth}: with prior.name fixed it is the depth, a whole number from 1")
    probabilities = torch.zeros(int(depth), dtype=torch.float64)
    probabilities[-1] = 1.0
    return probabilities


def poisson_lognormal(mean: float, sigma: float = 0.5, cap: int = 64) -> Tensor:
    """[cap] float64: ξ ~ N(μ, σ²), K | ξ ~ Poisson(exp ξ), R = min(K + 1, cap), with μ such that E[R] = mean.

    The paper's equation (5) with the cap of its appendix B.3: the tail mass accumulates at the cap and μ is calibrated
    on the capped variable. Every entry is positive.
    """
    if not 1.0 < mean < cap:
        raise UserError(f"prior.mean is {mean}: it must lie strictly between 1 and prior.cap ({cap})")
    if not 0.0 <= sigma <= _SIGMA_LIMIT:
        raise UserError(f"prior.sigma is {sigma}: it must lie between 0 and {_SIGMA_LIMIT:g}")
    return capped_pmf(_calibrate(float(mean), float(sigma), int(cap)), float(sigma), int(cap))


def uniform(cap: int) -> Tensor:
    """[cap] float64: every depth in 1..cap alike, the paper's U_1:cap; deeper ones have no support."""
    return torch.full((cap,), 1.0 / cap, dtype=torch.float64)


def saved(run: str | None) -> Tensor:
    """[cap] float64: the distribution that a pretraining run ended with, from the last row of its metrics."""
    if run is None:
        raise UserError("prior.name is saved: give prior.run, the folder of the pretraining run to take it from")
    file = Path(run) / "metrics.jsonl"
    try:
        row = json.loads(file.read_text(encoding="utf-8").rstrip().rpartition("\n")[2])
        probabilities = torch.tensor(row["prior/probabilities"], dtype=torch.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"prior.run: {file} has no last row with prior/probabilities ({error})") from None
    return probabilities / probabilities.sum()


def capped_pmf(mu: float, sigma: float, cap: int) -> Tensor:
    """[cap] float64: P(min(K + 1, cap) = r) for r = 1..cap, K a Poisson variable with log-normal(mu, sigma) rate."""
    if sigma == 0.0:
        rate = torch.tensor([math.exp(mu)], dtype=torch.float64)
        weights = torch.ones(1, dtype=torch.float64)
    else:
        normal = torch.linspace(-_GRID_HALF_WIDTH, _GRID_HALF_WIDTH, _GRID_POINTS, dtype=torch.float64)
        weights = torch.exp(-0.5 * normal.square())
        weights = weights / weights.sum()
        rate = torch.exp(mu + sigma * normal)
    counts = torch.arange(cap - 1, dtype=torch.float64)[:, None]
    log_mass = counts * rate.log() - rate - torch.lgamma(counts + 1)
    # P(K >= cap − 1 | rate) as an incomplete gamma function: one minus the sum could round to a negative mass.
    tail = torch.special.gammainc(torch.tensor(cap - 1.0, dtype=torch.float64), rate)
    mass = torch.cat([log_mass.exp() @ weights, (tail @ weights)[None]]).clamp_min(torch.finfo(torch.float64).tiny)
    return mass / mass.sum()


def _calibrate(mean: float, sigma: float, cap: int) -> float:
    """μ by bisection: E[min(K + 1, cap)] increases with μ, from 1 to cap."""
    depths = torch.arange(1, cap + 1, dtype=torch.float64)

    def expected(mu: float) -> float:
        return float(capped_pmf(mu, sigma, cap) @ depths)

    low, high = -1.0, 1.0
    while expected(low) > mean:
        low *= 2
    while expected(high) < mean:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) < mean else (low, middle)
    return (low + high) / 2
