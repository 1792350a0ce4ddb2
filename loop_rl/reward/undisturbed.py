"""What a user's code may do to a whole process, put back after it has run or refused."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back the current folder, the standard streams, and torch's default dtype and gradient mode.

    A run's paths are relative to the current folder, and its tensors are made in the default dtype. os._exit, which
    would end the run without a word, raises RuntimeError inside; in a forked child and in other threads it is itself.
    """
    here, leave = (os.getpid(), threading.get_ident()), os._exit

    def refused(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) == here:
            raise RuntimeError(f"it called os._exit({status!r})")
        leave(status)

    streams = sys.stdout, sys.stderr
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing to go back to
        folder = None
    torch = sys.modules.get("torch")  # without it there is nothing to keep: its own defaults are what is put back
    defaults = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else None
    os._exit = refused
    try:
        yield
    finally:
        os._exit = leave
        if folder is not None:
            os.chdir(folder)
        sys.stdout, sys.stderr = streams
        if (torch := sys.modules.get("torch")) is not None:
            dtype, gradient = defaults or (torch.float32, True)
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradient)
