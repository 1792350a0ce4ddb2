"""The gradient estimators, each a way to make the endpoint state z^R differentiable (DESIGN: mathematics).

| name | endpoint | gradient |
|---|---|---|
| full_bptt | replayed from z0 | through all R recurrences |
| truncated_bptt{b} | replayed from z0 | through the last b |
| recompute_neumann{k}[_tail] | replayed without gradient | k Neumann terms at z^R |
| reuse_neumann{k}[_tail] | saved by the rollout | k Neumann terms at z^R |
| recompute_implicit, reuse_implicit | as above | the whole series, to tolerance |
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from loop_rl.fixed_point.iteration import Map, iterate
from loop_rl.fixed_point.neumann import VJP, endpoint_gradient, implicit_sum, neumann_sum

_NAME = re.compile(
    r"full_bptt|truncated_bptt(?P<window>[1-9]\d*)"
    r"|(?P<source>recompute|reuse)_(neumann(?P<terms>[1-9]\d*)(?P<tail>_tail)?|implicit)"
)

EXAMPLES = "full_bptt, truncated_bptt4, recompute_neumann4, reuse_neumann4, reuse_neumann3_tail, reuse_implicit"


@dataclass(frozen=True)
class Estimator:
    """One gradient estimator; build it with `parse_estimator`.

    `window`: recurrences backpropagated through (bptt only; None is all). `terms`: Neumann terms (None: implicit).
    """

    name: str
    kind: Literal["bptt", "recompute", "reuse"]
    window: int | None = None
    terms: int | None = None
    tail: bool = False
    tolerance: float = 1e-6
    max_terms: int = 500

    @property
    def reuses(self) -> bool:
        """Whether the endpoint comes from the rollout, so that learning needs neither z0 nor R."""
        return self.kind == "reuse"

    def transform(self, vjp: VJP, g: Tensor) -> Tensor:
        """The vector sent into F(z^R) for the loss gradient g."""
        if self.terms is None:
            return implicit_sum(vjp, g, self.tolerance, self.max_terms)
        return neumann_sum(vjp, g, self.terms, self.tail)

    def endpoint(
        self,
        f: Map,
        *,
        z0: Tensor | None = None,
        depth: int | None = None,
        saved: Tensor | None = None,
        on_vjp: Callable[[Tensor, Tensor], None] | None = None,
    ) -> Tensor:
        """z^R, differentiable with respect to what f closes over.

        Args:
            f: the recurrence, [..., width] -> [..., width].
            z0, depth: initial state and R (bptt and recompute). saved: z^R of the rollout (reuse).
            on_vjp: told v and J^T v of every product that the series takes, during the backward pass.

        Raises:
            ValueError: what this estimator needs is missing.
        """

        def transform(vjp: VJP, g: Tensor) -> Tensor:
            return self.transform(vjp if on_vjp is None else _observed(vjp, on_vjp), g)

        if self.kind == "reuse":
            if saved is None:
                raise ValueError(f"{self.name} needs the rollout's saved endpoint states")
            return endpoint_gradient(f, saved, transform)
        if z0 is None or depth is None:
            raise ValueError(f"{self.name} needs the initial state and the depth")
        window = depth if self.kind == "bptt" and self.window is None else min(self.window or 0, depth)
        with torch.no_grad():
            z = iterate(f, z0, depth - window)
        if self.kind == "recompute":
            return endpoint_gradient(f, z, transform)
        return iterate(f, z, window)


def _observed(vjp: VJP, on_vjp: Callable[[Tensor, Tensor], None]) -> VJP:
    def told(v: Tensor) -> Tensor:
        product = vjp(v)
        on_vjp(v, product)
        return product

    return told


def parse_estimator(name: str) -> Estimator:
    """The estimator of this name.

    Raises:
        ValueError: not a name; the message lists examples.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no gradient estimator: write one such as {EXAMPLES}")
    if match["source"]:
        terms = int(match["terms"]) if match["terms"] else None
        if match["tail"] and terms == 1:
            raise ValueError(f"{name!r}: the geometric tail needs at least 2 terms")
        return Estimator(name, match["source"], terms=terms, tail=bool(match["tail"]))  # type: ignore[arg-type]
    return Estimator(name, "bptt", window=int(match["window"]) if match["window"] else None)
