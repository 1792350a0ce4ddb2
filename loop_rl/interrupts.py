"""Signals that ask a command to end: SIGTERM and a terminal that closes do what Ctrl-C does."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A command that was asked to end. resumable: whether it left something that --resume goes on with."""

    def __init__(self, message: str = "", resumable: bool = False) -> None:
        super().__init__(message)
        self.resumable = resumable


def to_handle() -> list[signal.Signals]:
    """SIGNALS, less a SIGHUP that is ignored (nohup)."""
    return [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]


@contextlib.contextmanager
def handling(handler: Callable[[int, object], None], then_ignored: bool = False) -> Iterator[None]:
    """Has SIGNALS call the handler inside, and be ignored after that, if asked.

    SIGHUP stays ignored where it is (nohup). Off the main thread, which alone may set handlers, nothing is done. A
    terminal that has closed refuses every write, so what is said after that goes nowhere instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def receive(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            for descriptor in terminals:
                if not os.isatty(descriptor):
                    _silence(descriptor)
        handler(number, frame)

    previous = {number: signal.signal(number, receive) for number in to_handle()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_IGN if then_ignored else before)


def interrupting() -> contextlib.AbstractContextManager[None]:
    """Has SIGNALS raise KeyboardInterrupt where the program is; see `handling`."""
    return handling(_interrupt)


@contextlib.contextmanager
def starting_servers() -> Iterator[None]:
    """What is started inside outlives a terminal that closes; handlers that a library sets meanwhile are put back.

    SIGHUP is blocked, which what is started inherits, and not ignored: here it is answered at the end at the latest.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _silence(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
