"""Stopping a run from outside: a signal (see interrupts) ends it between two updates, a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from loop_rl.interrupts import handling

# A launcher of several processes passes a signal on that its processes have had already.
REPEAT_SECONDS = 3.0


class StopRequests:
    """Whether the run was asked to stop, and how soon.

    The first signal sets the request, answers with a line and interrupts nothing. The second one raises
    KeyboardInterrupt where the run is, but a part marked as `whole` ends first. A third one raises it anywhere. With
    `at_once` the first signal does what the second one does otherwise, and its repeats within REPEAT_SECONDS nothing.

    doing: what is ended first, for the answer.
    """

    def __init__(self, doing: str, at_once: bool = False) -> None:
        self.doing, self.at_once = doing, at_once
        self._level = 0  # 1: asked to stop; 2: to be interrupted, once; 3: wherever it is
        self._whole, self._interrupted, self._since = 0, False, 0.0

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._level > 0

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """A part that is not to be cut in half, such as an update or a write."""
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1
        self._interrupt()

    def receive(self, number: int, frame: object) -> None:
        """The handler of a signal."""
        if self._level == 0:
            self._level, self._since = 2 if self.at_once else 1, time.monotonic()
            end = "saving the last finished step" if self.at_once else f"stopping after {self.doing}"
            self._answer(f"{end}; Ctrl-C again ends at once")
        elif not self.at_once or time.monotonic() - self._since > REPEAT_SECONDS:
            self._level += 1
        self._interrupt()

    def _interrupt(self) -> None:
        if self._level > 2 or (self._level == 2 and not self._whole and not self._interrupted):
            self._interrupted = True
            raise KeyboardInterrupt

    @staticmethod
    def _answer(line: str) -> None:
        # os.write, since the handler may have interrupted a print; on a terminal a bar keeps its line.
        before = "\n" if sys.stderr.isatty() else ""
        with contextlib.suppress(OSError):  # no one may be there to read it
            os.write(2, f"{before}loop-rl: {line}\n".encode())


@contextlib.contextmanager
def stop_requests(doing: str = "the update under way", at_once: bool = False) -> Iterator[StopRequests]:
    """Takes signals as requests to stop; see StopRequests."""
    stop = StopRequests(doing, at_once)
    # A launcher's signal, when another rank has failed or a repeat, is not to cut short what is left to do.
    with handling(stop.receive, then_ignored=at_once):
        yield stop
