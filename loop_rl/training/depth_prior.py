"""The distribution of training depths: one depth R is drawn for every micro-batch of pretraining."""

import math
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
    """What pretraining asks of a prior; a prior that learns from the losses keeps its logits in its state dict."""

    @property
    def probabilities(self) -> Tensor:
        """[cap] float64; entry r − 1 is the probability of depth r."""
        ...

    def draw(self, generator: torch.Generator) -> int:
        """One depth in 1..cap."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FixedDepth:
    """Every micro-batch has the same depth."""

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise UserError(f"prior.mean is {depth}: a fixed depth is at least 1")
        self.depth = depth

    @property
    def probabilities(self) -> Tensor:
        """[depth] float64, all mass on the last entry."""
        probabilities = torch.zeros(self.depth, dtype=torch.float64)
        probabilities[-1] = 1.0
        return probabilities

    def draw(self, generator: torch.Generator) -> int:
        """The depth; the generator is left untouched."""
        return self.depth

    def state_dict(self) -> dict[str, Any]:
        return {"depth": self.depth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError when the state belongs to another depth."""
        _check_same(self.state_dict(), state)


class PoissonLogNormal:
    """ξ ~ N(μ, σ²), K | ξ ~ Poisson(exp ξ), R = min(K + 1, cap), with μ such that E[R] = mean.

    The paper's equation (5) with the cap of its appendix B.3: the tail mass accumulates at the cap and μ is calibrated
    on the capped variable.
    """

    def __init__(self, mean: float, sigma: float = 0.5, cap: int = 64) -> None:
        if not 1.0 < mean < cap:
            raise UserError(f"prior.mean is {mean}: it must lie strictly between 1 and prior.cap ({cap})")
        if not 0.0 <= sigma <= _SIGMA_LIMIT:
            raise UserError(f"prior.sigma is {sigma}: it must lie between 0 and {_SIGMA_LIMIT:g}")
        self.mean, self.sigma, self.cap = float(mean), float(sigma), int(cap)
        self.mu = _calibrate(self.mean, self.sigma, self.cap)
        self._probabilities = capped_pmf(self.mu, self.sigma, self.cap)
        self._cumulative = self._probabilities.cumsum(0)

    @property
    def probabilities(self) -> Tensor:
        """[cap] float64; entry r − 1 is P(R = r), every entry positive."""
        return self._probabilities

    def draw(self, generator: torch.Generator) -> int:
        """One depth in 1..cap, by inversion, so that a draw always costs one number of the generator."""
        uniform = torch.rand((), generator=generator, dtype=torch.float64)
        return min(int(torch.searchsorted(self._cumulative, uniform, right=True)) + 1, self.cap)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "sigma": self.sigma, "cap": self.cap}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError when the state belongs to another prior."""
        _check_same(self.state_dict(), state)


def make_prior(name: str, mean: float, sigma: float, cap: int) -> DepthPrior:
    """The prior a recipe names: fixed (its depth is the mean, which must be whole) or poisson_lognormal."""
    if name == "fixed":
        if mean != int(mean):
            raise UserError(f"prior.mean is {mean}: with prior.name fixed it is the depth, a whole number")
        return FixedDepth(int(mean))
    if name == "poisson_lognormal":
        return PoissonLogNormal(mean, sigma, cap)
    raise UserError(f"prior.name is {name!r}: use fixed or poisson_lognormal")


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


def _check_same(own: dict[str, Any], saved: dict[str, Any]) -> None:
    if own != saved:
        raise UserError(f"the checkpoint was made with the depth prior {saved}, the recipe's section prior gives {own}")
