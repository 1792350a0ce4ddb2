"""Text that a model continues, as token ids: at most one beginning token, and no end token behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PROBE = "0"  # any text that special tokens are put around
_said: set[str] = set()


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a prompt, with the special tokens that the tokenizer puts in front; see `all_prompt_ids`."""
    return all_prompt_ids(tokenizer, [text])[0]


def all_prompt_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of several prompts, or of documents whose end token the caller writes.

    A tokenizer may end every text with an end token, after which a model has nothing to say, or put a beginning token
    in front of a template that has one already. Both are left out, each with one warning.
    """
    if not texts:
        return []
    front, behind = _added(tokenizer)
    if behind:
        ended = tokenizer.convert_ids_to_tokens(behind)
        _say(f"the tokenizer ends every text with {' '.join(ended)}: left out, since prompts are to be continued")
    return [_prompt(tokenizer, ids, front) for ids in tokenizer(list(texts), add_special_tokens=False).input_ids]


def _added(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """What the tokenizer puts in front of every text, and behind it."""
    plain, whole = tokenizer(_PROBE, add_special_tokens=False).input_ids, tokenizer(_PROBE).input_ids
    for start in range(len(whole) - len(plain) + 1):
        if plain and whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return [], []


def _prompt(tokenizer: PreTrainedTokenizerBase, ids: list[int], front: list[int]) -> list[int]:
    first, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if front and ids[: len(front)] == front or (first is not None and first in front and ids[:1] == [first]):
        _say(
            f"prompts begin with {tokenizer.convert_ids_to_tokens(ids[0])}, which the tokenizer puts in front as well: "
            "it is there once"
        )
    else:
        ids = [*front, *ids]
    while first is not None and ids[:2] == [first, first]:
        ids = ids[1:]
    while end is not None and len(ids) > 1 and ids[-1] == end:
        _say(f"prompts end with {tokenizer.eos_token}: left out, since a model has nothing to say behind it")
        ids = ids[:-1]
    return ids


def _say(message: str) -> None:
    """A warning, once in a process."""
    if message not in _said:
        _said.add(message)
        logger.warning("%s", message)
