"""Backpropagation through the recurrences themselves: through all of them, or through the last b."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from loop_rl.fixed_point.estimators.estimator import Estimator, OnVJP
from loop_rl.fixed_point.iteration import Map, iterate


@dataclass(frozen=True)
class FullBPTT(Estimator):
    """Backpropagation through all R recurrences: the exact gradient of the loss at z^R.

    Equation: c + sum_r B_r^T (J_{r+1}^T ... J_R^T) g, with J_r and B_r at z^{r-1}.
    Cost: 3 R. Memory: the activations of R recurrences.
    Source: backpropagation through time (Werbos 1990); the paper's baseline.
    Use: as the control that the others are compared with, and where the map does not contract.
    """

    pattern = re.compile("full_bptt")
    name = "full_bptt"

    @classmethod
    def parsed(cls, match: re.Match[str]) -> "FullBPTT":
        return cls()

    def window(self, depth: int) -> int:
        return depth

    def cost(self, depth: int) -> int:
        return 3 * depth

    def endpoint(
        self,
        f: Map,
        *,
        z0: Tensor | None = None,
        depth: int | None = None,
        states: Tensor | None = None,
        on_vjp: OnVJP | None = None,
    ) -> Tensor:
        return iterate(f, *self._replayed(z0, depth))


@dataclass(frozen=True)
class TruncatedBPTT(Estimator):
    """Backpropagation through the last b recurrences; the state before them is detached, the injected input is not.

    Equation: as full BPTT, the sum over r > R - b only.
    Cost: R + 2 b (the first R - b forwards keep no graph). Memory: the activations of b recurrences.
    Source: Williams and Peng 1990; for looped models, the paper's training and Geng et al. 2021 (at a fixed point the
    sum is the Neumann series of b terms).
    Use: pretraining at depths that vary, and as a control where the map contracts.
    """

    back: int
    pattern = re.compile(r"truncated_bptt([1-9]\d*)")
    one_depth = True

    @classmethod
    def parsed(cls, match: re.Match[str]) -> "TruncatedBPTT":
        return cls(int(match[1]))

    @property
    def name(self) -> str:
        return f"truncated_bptt{self.back}"

    @property
    def min_depth(self) -> int:
        return self.back

    def window(self, depth: int) -> int:
        return min(self.back, depth)

    def cost(self, depth: int) -> int:
        return depth + 2 * self.window(depth)

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
            z = iterate(f, z0, depth - self.window(depth))
        return iterate(f, z, self.window(depth))
