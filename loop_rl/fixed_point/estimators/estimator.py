"""What a gradient estimator is: a way to make the endpoint state z^R differentiable, and what that needs and costs."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

from torch import Tensor

from loop_rl.fixed_point.iteration import Map

#: told v and J^T v of every product that a series takes
OnVJP = Callable[[Tensor, Tensor], None]


class Estimator(ABC):
    """A kind of gradient estimator is a frozen dataclass of this class, entered in the table of the package.

    pattern: how its names are spelled, with a group for what `parsed` reads.
    needs_states: whether it takes the endpoints that the rollout saved. needs_replay: whether it runs the loop again,
    from z0 and with the sampler's keys and values.
    one_depth: whether it counts recurrences from a depth that all tokens have.
    approximate: whether it sums a series at the endpoint, where it applies F once more; otherwise the gradient goes
    through the recurrences themselves.
    """

    pattern: ClassVar[re.Pattern[str]]
    needs_states: ClassVar[bool] = False
    needs_replay: ClassVar[bool] = True
    one_depth: ClassVar[bool] = False
    approximate: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def parsed(cls, match: re.Match[str]) -> Self:
        """The estimator of a name that `pattern` matched."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As recipes write it."""

    @property
    def vjps(self) -> int | None:
        """Products with J^T that the backward pass takes beyond its way through F; None: as many as it needs."""
        return 0

    @property
    def min_depth(self) -> int:
        """Recurrences that a pass has to have."""
        return 1

    @abstractmethod
    def window(self, depth: int) -> int:
        """Recurrences whose graph is kept for the backward pass, of a pass of `depth`."""

    @abstractmethod
    def cost(self, depth: int) -> int | None:
        """Core cost of an update per token, in block-forwards for each block of the core: a forward is 1, its backward
        2, a product with J^T 1. None where it isn't known beforehand."""

    @abstractmethod
    def endpoint(
        self,
        f: Map,
        *,
        z0: Tensor | None = None,
        depth: int | None = None,
        states: Tensor | None = None,
        on_vjp: OnVJP | None = None,
    ) -> Tensor:
        """z^R, differentiable with respect to what f closes over.

        Args:
            f: the recurrence, [..., width] -> [..., width].
            z0, depth: initial state and R, where it replays. states: z^R of the rollout, where it needs them.
            on_vjp: told v and J^T v of every product that the series takes, during the backward pass.

        Raises:
            ValueError: what this estimator needs is missing.
        """

    def recomputing(self) -> "Estimator":
        """The estimator of the same gradient that takes nothing from the rollout's states; itself if it does so."""
        return self

    def _replayed(self, z0: Tensor | None, depth: int | None) -> tuple[Tensor, int]:
        if z0 is None or depth is None:
            raise ValueError(f"{self.name} needs the initial state and the depth")
        return z0, depth
