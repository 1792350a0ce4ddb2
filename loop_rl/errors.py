"""The one exception that a user's own input can cause."""


class UserError(Exception):
    """Something the user can mend: the command line prints the message on one line and exits with code 2.

    The message names the cause, the place and the mend.
    """
