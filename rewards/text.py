"""The text of a completion, whichever of TRL's two forms it comes in."""

from collections.abc import Sequence
from typing import Any


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
