"""Where completions are scored: the interface, and the scorer of this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, Self

from loop_rl.data import Example
from loop_rl.reward.function import RewardError
from loop_rl.reward.reward import Reward, Rewards, RewardSpec


class Scorer(Protocol):
    """Takes completions to score as they come, and gives their scores when asked. A context manager.

    notes: what its rewards say. restarts: of its workers, so far.
    """

    notes: list[str]
    restarts: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(
        self, spec: RewardSpec, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
    ) -> Any:
        """Begins to score completions, with each one's example beside it; returns a ticket for `gather`."""

    def gather(self, tickets: Sequence[Any]) -> list[Rewards]:
        """The scores of some tickets, in their order, waited for. UserError for a reward function that fails."""


class LocalScorer:
    """Scores in this process, at once. A context manager, which starts the rewards' modules and ends them."""

    restarts = 0

    def __init__(self, specs: Sequence[RewardSpec]) -> None:
        self._rewards = {spec: Reward(spec) for spec in specs}
        self.notes = list(dict.fromkeys(line for reward in self._rewards.values() for line in reward.start()))

    def submit(
        self, spec: RewardSpec, examples: Sequence[Example], completions: Sequence[str], ids: Sequence[list[int]]
    ) -> Rewards:
        """See Scorer."""
        try:
            return self._rewards[spec].score(examples, completions, ids)
        except RewardError as error:
            print(error.details, file=sys.stderr)
            raise

    def gather(self, tickets: Sequence[Rewards]) -> list[Rewards]:
        """See Scorer."""
        return list(tickets)

    def __enter__(self) -> LocalScorer:
        return self

    def __exit__(self, *_: object) -> None:
        for reward in self._rewards.values():
            reward.close()
