"""What is measured of an update: kept over micro-batches, gathered from all ranks, and named as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

Metrics = dict[str, float | None]

_QUANTILE_LIMIT = 2**24  # values that torch sorts for a quantile


class Measurements:
    """Sums over tokens, residuals and seconds of one rank's micro-batches; `gathered`: of all ranks'."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.residuals: list[np.ndarray] = []
        self.seconds: dict[str, float] = {}

    def add(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Add to a sum, in float64; what is masked may be NaN."""
        values = values.double()
        self.sums[name] = self.sums.get(name, 0.0) + float(
            (values if mask is None else torch.where(mask, values, 0.0)).sum()
        )

    def took(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def ratio(self, name: str, count: str = "tokens") -> float | None:
        """Of two sums, by default a mean over the tokens that were learned from; None if the second is 0."""
        divisor = self.sums.get(count, 0.0)
        return self.sums[name] / divisor if divisor else None

    def quantile(self, share: float) -> float | None:
        """Of the residuals; None if there are none."""
        values = torch.from_numpy(np.concatenate(self.residuals)) if self.residuals else torch.empty(0)
        # Evenly spaced ones stand for more than torch sorts.
        return float(values[:: 1 + len(values) // _QUANTILE_LIMIT].quantile(share)) if len(values) else None

    def gathered(self) -> Measurements:
        """Those of all ranks, the same on each: whatever one of them has summed, and the longest of their times."""
        every = Measurements()
        for rank in gather_object([self]):
            for name, value in rank.sums.items():
                every.sums[name] = every.sums.get(name, 0.0) + value
            for name, value in rank.seconds.items():
                every.seconds[name] = max(every.seconds.get(name, 0.0), value)
            every.residuals += rank.residuals
        return every


def over_iterations(updates: Sequence[Mapping[str, float | None]]) -> Metrics:
    """The metrics of a batch's updates as those of one: times, skipped updates and learned tokens are summed.

    `sampling/` is that of the first update, where learner and sampler still have the same weights; `residual/` and
    `neumann/` are the last one's, where the weights are furthest from those that the states were saved with. All else
    is a mean over updates, weighted by tokens, of those in which it is defined.
    """
    weights = [update["completions/learned_tokens"] or 0.0 for update in updates]
    merged: Metrics = {}
    for name in updates[0]:
        defined = [(u[name], w) for u, w in zip(updates, weights, strict=True) if u[name] is not None]
        merged[name] = _merge(name, *zip(*defined, strict=True)) if defined else None
    return merged


def _merge(name: str, values: Sequence[float], weights: Sequence[float]) -> float:
    if name.startswith("time/") or name in ("skipped_update", "completions/learned_tokens"):
        return sum(values)
    if name.startswith("sampling/"):
        return values[0]
    if name.startswith(("residual/", "neumann/")):
        return values[-1]
    return float(np.average(values, weights=weights if sum(weights) else None))


def cosine(ours: Iterable[Tensor | None], theirs: Iterable[Tensor | None]) -> float | None:
    """Of two gradients, each a tensor a parameter (None is zeros), summed in float64 without a copy of either; None
    where one of them is zero."""
    dot = ours_square = theirs_square = 0.0
    for pair in zip(ours, theirs, strict=True):
        a, b = (_pieces(gradient) for gradient in pair)
        ours_square += sum(float(x.double().square().sum()) for x in a)
        theirs_square += sum(float(x.double().square().sum()) for x in b)
        dot += sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=False))
    size = (ours_square * theirs_square) ** 0.5
    return dot / size if size else None


def _pieces(gradient: Tensor | None) -> Sequence[Tensor]:
    return () if gradient is None else gradient.flatten().split(2**22)
