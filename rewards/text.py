"""The text of a completion, whichever of TRL's two forms it comes in, and the part of it that answers the question."""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

# How this project's templates begin a question. A completion goes on behind `Answer:`, so such a line begins another.
_QUESTION = re.compile(r"(?<=\S)[^\S\n]*\n\s*Question:")
_MAX_QUESTIONS = 4  # that are looked at, which keeps the time linear


def completion_text(completion: str | Sequence[dict[str, Any]]) -> str:
    """The text of a completion: itself, or the content of the last message of a chat.

    Raises:
        TypeError: neither a string nor messages; a caller's mistake must not look like a wrong answer.
    """
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, Sequence) or not all(isinstance(message, dict) for message in completion):
        raise TypeError(f"a completion must be a string or a list of messages, got {type(completion).__name__}")
    content = completion[-1].get("content") if completion else None
    if isinstance(content, list):  # parts: {"type": "text", "text": ...}
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def answered(text: str, find: Callable[[str], T | None]) -> T | None:
    """What `find` gives for a completion without the questions that the model makes up behind its answer.

    A base model that has answered may go on with `Question: ...` and answer that too. The text ends before the first
    line that begins with `Question:` and has an answer before it; without one, as when the question is repeated before
    it is answered, it is the whole text.

    Args:
        find: the answer in a text, or None.
    """
    for match in islice(_QUESTION.finditer(text), _MAX_QUESTIONS):
        if (found := find(text[: match.start()])) is not None:
            return found
    return find(text)
