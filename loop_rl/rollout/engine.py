"""What turns prompts into rollouts: the interface of the engine in this process and of the one on Ray workers."""

from collections.abc import Callable, Mapping
from typing import Protocol, Self

from torch import Tensor

from loop_rl.rollout.record import Rollout
from loop_rl.rollout.sampling import Sampling


class Engine(Protocol):
    """Samples with copies of the learner's weights. A context manager.

    version: of the weights, -1 before the first ones. restarts: of its workers, so far. places: where each of them
    is at the start, its node's name and the ids of its GPUs. notes: where it samples, for the user; empty where there
    is nothing to say.
    """

    version: int
    restarts: int
    places: list[tuple[str, list[str]]]
    notes: list[str]

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take a copy of these weights, on which rollouts are marked `version`.

        First a whole state dict of LoopedForCausalLM, with adapters where the engine has them; later ones may leave
        out what has not changed.
        """

    def generate(
        self,
        prompts: list[list[int]],
        sampling: Sampling,
        seeds: list[int],
        on_group: Callable[[int, Rollout], None] | None = None,
    ) -> list[Rollout]:
        """Sample every prompt's group, with a seed for each; returns them in the prompts' order.

        `on_group(index, rollout)` is called as soon as a group has ended, while others are still being sampled, so
        that it can be scored meanwhile.
        """
