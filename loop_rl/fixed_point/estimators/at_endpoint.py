"""A series at the endpoint, which the learner rebuilds or takes from the rollout."""

import re
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from loop_rl.fixed_point.endpoint import endpoint_gradient
from loop_rl.fixed_point.estimators.estimator import Estimator, OnVJP
from loop_rl.fixed_point.iteration import Map, iterate
from loop_rl.fixed_point.series import VJP, Implicit, Neumann, Series

_SERIES = r"(?:neumann(?P<terms>[1-9]\d*)(?P<tail>_tail)?|implicit)"


@dataclass(frozen=True)
class _AtEndpoint(Estimator):
    series: Series
    approximate = True

    @classmethod
    def parsed(cls, match: re.Match[str]) -> Self:
        return cls(Neumann(int(match["terms"]), bool(match["tail"])) if match["terms"] else Implicit())

    @property
    def vjps(self) -> int | None:
        return self.series.vjps

    def window(self, depth: int) -> int:
        return 1

    def _differentiable(self, f: Map, z: Tensor, on_vjp: OnVJP | None) -> Tensor:
        def transform(vjp: VJP, g: Tensor) -> Tensor:
            return self.series.transform(vjp if on_vjp is None else _observed(vjp, on_vjp), g)

        return endpoint_gradient(f, z, transform)


@dataclass(frozen=True)
class Recompute(_AtEndpoint):
    """The series at z^R, rebuilt from z0 without gradient.

    Equation: c + B^T sum_j (J^T)^j g, J and B at z^R.
    Cost: R, then as Reuse. Memory: the activations of one recurrence.
    Source: the paper's control, which separates the Neumann approximation from the reuse of states (section 3.1).
    Use: where the sampler's states can't be had, and when a health limit says that they are off.
    """

    pattern = re.compile("recompute_" + _SERIES)

    @property
    def name(self) -> str:
        return f"recompute_{self.series.name}"

    def cost(self, depth: int) -> int | None:
        return None if self.vjps is None else depth + 3 + self.vjps

    def endpoint(
        self,
        f: Map,
        *,
        z0: Tensor | None = None,
        depth: int | None = None,
        states: Tensor | None = None,
        on_vjp: OnVJP | None = None,
    ) -> Tensor:
        z0, depth = self._replayed(z0, depth)
        with torch.no_grad():
            z = iterate(f, z0, depth)
        return self._differentiable(f, z, on_vjp)


@dataclass(frozen=True)
class Reuse(_AtEndpoint):
    """The series at the z^R that the rollout saved: no replay, no dependence on R.

    Equation: c + B^T sum_j (J^T)^j g, J and B at the saved z^R.
    Cost: 1 + 2 for F and its backward, and a product for each term after the first. Memory: one recurrence's.
    Source: the paper, section 3.1.
    Use: where the rollout's endpoints are close to fixed points; `loop-rl diagnose` measures that.
    """

    pattern = re.compile("reuse_" + _SERIES)
    needs_states = True
    needs_replay = False

    @property
    def name(self) -> str:
        return f"reuse_{self.series.name}"

    def cost(self, depth: int) -> int | None:
        return None if self.vjps is None else 3 + self.vjps

    def endpoint(
        self,
        f: Map,
        *,
        z0: Tensor | None = None,
        depth: int | None = None,
        states: Tensor | None = None,
        on_vjp: OnVJP | None = None,
    ) -> Tensor:
        if states is None:
            raise ValueError(f"{self.name} needs the rollout's saved endpoint states")
        return self._differentiable(f, states, on_vjp)

    def recomputing(self) -> Recompute:
        return Recompute(self.series)


def _observed(vjp: VJP, on_vjp: OnVJP) -> VJP:
    def told(v: Tensor) -> Tensor:
        product = vjp(v)
        on_vjp(v, product)
        return product

    return told
