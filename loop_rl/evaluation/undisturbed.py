"""What a user's code may change for a whole process, put back after it has run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back the current folder, the standard streams, and torch's default dtype and gradient mode.

    A run's paths are relative to the current folder, and its tensors are made in the default dtype.
    """
    streams = sys.stdout, sys.stderr
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was removed: nothing to go back to
        folder = None
    torch = sys.modules.get("torch")  # without it there is nothing to keep: its own defaults are what is put back
    defaults = (torch.get_default_dtype(), torch.is_grad_enabled()) if torch else None
    try:
        yield
    finally:
        if folder is not None:
            os.chdir(folder)
        sys.stdout, sys.stderr = streams
        if (torch := sys.modules.get("torch")) is not None:
            dtype, gradient = defaults or (torch.float32, True)
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradient)
