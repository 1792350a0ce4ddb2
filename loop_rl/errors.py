"""The one exception that a user's own input can cause, and the words of others in its line."""

_MAX_MESSAGE = 500  # characters


class UserError(Exception):
    """Something the user can fix: the command line prints the message on one line and exits with code 2.

    The message names the cause, the place and the fix.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its type where it has none."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def out_of_memory(error: BaseException) -> str | None:
    """One line for memory that was refused, the machine's or a GPU's; None for other errors."""
    refused = "can't allocate memory" in str(error) or type(error).__name__ == "OutOfMemoryError"  # torch's
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and refused):
        return None
    return (
        f"out of memory ({first_line(error)}): lower the rows or the lengths of a batch, or use a smaller model; "
        "loop-rl train --dry-run says what a run takes"
    )


def type_and_message(error: BaseException) -> str:
    """An error's type and message in one line, a long one cut; a message that can't be made is left out."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # a class of the user's own, whose __str__ fails
        text = type(error).__name__
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."
