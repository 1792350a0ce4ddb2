"""Completions as text: which tokens say nothing, and where a stop string ends one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # late: they bring torch, which reading evaluations can do without
    from transformers import PreTrainedTokenizerBase

    from loop_rl.rollout.sampling import Sampling

# Tokens that are decoded besides as many as the longest stop string has bytes: some decode to nothing.
_MARGIN = 8


class CompletionText:
    """Reads completions of one kind of sampling, in the sampler and for the reward alike.

    Tokens that begin, end or pad a text are left out (the tokenizer's own, and the sampling's end tokens). Every other
    special token stays, since a tag such as <think> is part of an answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> None:
        self._tokenizer, self._stop = tokenizer, sampling.stop
        own = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
        self._silent = {*sampling.eos_token_ids, *own}
        self._candidates: dict[int, bool] = {}
        self.window = max((len(string.encode()) for string in self._stop), default=0) + _MARGIN

    def text(self, token_ids: Sequence[int]) -> str:
        """The completion as text, cut before the first stop string."""
        text = self._decode(token_ids)
        places = [place for string in self._stop if (place := text.find(string)) >= 0]
        return text[: min(places)] if places else text

    def may_stop(self, token: int) -> bool:
        """Whether a stop string may end with this token: whether it has the last character of one, or part of one."""
        known = self._candidates.get(token)
        if known is None:
            piece = self._decode([token])
            # A tokenizer may strip the blanks of a first token, and shows part of a character as U+FFFD.
            known = "\ufffd" in piece or any(string[-1] == " " or string[-1] in piece for string in self._stop)
            self._candidates[token] = known
        return known

    def stops(self, last_ids: Sequence[int]) -> bool:
        """Whether the last of these tokens completes a stop string; the last `window` of a completion will do.

        To be asked at every token that `may_stop`, so that the first stop string is met.
        """
        text = self._decode(last_ids)
        return any(string in text for string in self._stop)

    def _decode(self, token_ids: Sequence[int]) -> str:
        said = [int(token) for token in token_ids if int(token) not in self._silent]
        return self._tokenizer.decode(said, skip_special_tokens=False)
