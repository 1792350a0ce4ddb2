"""The rollout record: all that crosses from sampler to learner. Plain numpy, so that Ray ships it without copies."""

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Completion:
    """One sampled completion of C tokens (its end token, or those of its stop string, included).

    token_ids: int64 [C]. logps: float32 [C], behaviour log-probabilities at the sampling temperature, before top-p and
    top-k. states: float32 [C - 1, width], endpoint states of its tokens; the last token was never fed. depth:
    recurrences. seed: of its tokens' initial states.
    """

    token_ids: np.ndarray
    logps: np.ndarray
    states: np.ndarray
    depth: int
    finish_reason: Literal["stop", "length"]
    seed: int
    depths: np.ndarray | None = None

    @property
    def mean_depth(self) -> float:
        """Recurrences of a token, averaged over those that were fed; `depth` where none was."""
        return float(self.depths.mean()) if self.depths is not None and len(self.depths) else float(self.depth)


@dataclass(frozen=True)
class Rollout:
    """One group: a prompt of P tokens, stored once, and its completions.

    prompt_ids: int64 [P]. prompt_states: float32 [P, width]. seed: of the prompt's initial states. version: of the
    weights that sampled it. prompt_depths: int16 [P] or None, as a completion's depths.
    """

    prompt_ids: np.ndarray
    prompt_states: np.ndarray
    completions: list[Completion]
    seed: int
    version: int
    prompt_depths: np.ndarray | None = None
