"""The one exception that a user's own input can cause, and the words of others in its line."""


class UserError(Exception):
    """Something the user can fix: the command line prints the message on one line and exits with code 2.

    The message names the cause, the place and the fix.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its type where it has none."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def type_and_message(error: BaseException) -> str:
    """An error's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
