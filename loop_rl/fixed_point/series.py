"""The vector that an endpoint gradient sends into F: the Neumann series of the loss gradient, cut or summed whole.

With J the Jacobian of F at z^R and g the loss gradient there, the implicit function theorem gives
(I - J^T)^-1 g = sum_j (J^T)^j g, which converges where the map contracts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

VJP = Callable[[Tensor], Tensor]

TAIL_LIMIT = 0.9

log = logging.getLogger(__name__)


class Series(Protocol):
    """How many terms of the series are summed, and how."""

    @property
    def name(self) -> str:
        """As estimators spell it."""

    @property
    def vjps(self) -> int | None:
        """Products with J^T that a sum takes; None: as many as it needs."""

    def transform(self, vjp: VJP, g: Tensor) -> Tensor:
        """The sum for g [rows, ...], given v -> J^T v; of g's shape and dtype."""


@dataclass(frozen=True)
class Neumann:
    """The first k terms.

    Equation: sum_{j<k} (J^T)^j g, k = `terms`, so k - 1 products. For a contraction with factor kappa the error is at
    most |B| |g| kappa^k / (1 - kappa).
    With `tail` the rest is estimated as geometric: lambda = <v_{k-1}, v_{k-2}> / <v_{k-2}, v_{k-2}>, v_j = (J^T)^j g,
    clamped to (-0.9, 0.9), and v_{k-1} lambda / (1 - lambda) is added; one lambda a row (first axis of g).
    Source: the sum is Fixed-Point Reasoners' equation (5), k = 1 Fung et al. 2022 (Jacobian-free backpropagation); the
    tail is ours.
    Use: k = 4, or 3 with the tail, at endpoints whose residual is small; more terms where `neumann/term_ratio` is near
    1, none where it is above.

    Raises:
        ValueError: a tail without two terms to take a ratio of.
    """

    terms: int
    tail: bool = False

    def __post_init__(self) -> None:
        if self.tail and self.terms < 2:
            raise ValueError(f"{self.name}: the geometric tail needs at least 2 terms")

    @property
    def name(self) -> str:
        return f"neumann{self.terms}{'_tail' if self.tail else ''}"

    @property
    def vjps(self) -> int:
        return self.terms - 1

    def transform(self, vjp: VJP, g: Tensor) -> Tensor:
        total, v, previous = g, g, g
        for _ in range(self.terms - 1):
            previous, v = v, vjp(v)
            total = total + v
        if self.tail:
            # Per row: rows are independent, and a ratio over the batch would tie a row's gradient to its neighbours.
            axes = _axes(g)
            before, last = _precise(previous), _precise(v)
            square = (before * before).sum(axes, keepdim=True)
            ratio = (last * before).sum(axes, keepdim=True) / square.clamp_min(torch.finfo(square.dtype).tiny)
            ratio = ratio.clamp(-TAIL_LIMIT, TAIL_LIMIT)
            total = total + v * (ratio / (1.0 - ratio)).to(v.dtype)
        return total


@dataclass(frozen=True)
class Implicit:
    """The whole series: every row is summed until its last term is below `tolerance` of its sum.

    Equation: (I - J^T)^-1 g.
    Source: Bai et al. 2019 (deep equilibrium models); Fixed-Point Reasoners, equation (4).
    Use: as the reference that the cut sums are measured against; `max_terms` products at worst.

    Rows are the first axis of g, and stop each by itself: what a row gets does not depend on its neighbours. Warns and
    gives the sums so far when a series does not settle (the map does not contract there).
    """

    tolerance: float = 1e-6
    max_terms: int = 500

    name = "implicit"
    vjps = None

    def transform(self, vjp: VJP, g: Tensor) -> Tensor:
        total, v = g, g
        for _ in range(self.max_terms):
            v = vjp(v)
            total = total + v
            settled = row_norms(v) <= self.tolerance * row_norms(total)
            if settled.all():
                return total
            v = torch.where(settled, 0.0, v)
        log.warning(
            "implicit gradient: no convergence to %g in %d terms; the map may not contract",
            self.tolerance,
            self.max_terms,
        )
        return total


def row_norms(v: Tensor) -> Tensor:
    """The norm of every row, first axis, in float32 at least; all axes are kept. A vector is one row."""
    return _precise(v).square().sum(_axes(v), keepdim=True).sqrt()


def _axes(v: Tensor) -> tuple[int, ...]:
    return tuple(range(1, v.dim())) or (0,)


def _precise(v: Tensor) -> Tensor:
    return v if v.dtype == torch.float64 else v.float()
