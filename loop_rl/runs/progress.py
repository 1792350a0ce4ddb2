"""What a run says while it works: a bar on a terminal, lines elsewhere, so that a log tells it too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

# Without a terminal, shorter steps share a line.
LINE_SECONDS = 5.0


class Progress:
    """Shows a run's steps, and counts within them such as the questions of an evaluation, on stdout.

    On a terminal it is a bar. Elsewhere it is a line per step, at least `LINE_SECONDS` apart but for the first and the
    last, each with the time left; so it is on a terminal without `bar`. Nothing is shown unless `shown`. Use it as a
    context manager.
    """

    def __init__(self, total: int, done: int = 0, shown: bool = True, unit: str = "step", bar: bool = True) -> None:
        self.total, self.unit, self.shown = total, unit, shown
        self._console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=self._console, disable=not (shown and bar and self._console.is_terminal))
        self._task = self._bars.add_task("starting", total=total, completed=done)
        self._first, self._started = done, time.monotonic()
        self._last_line = -float("inf")

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def step(self, step: int, text: str, more: str = "") -> None:
        """`step` steps are done. `text` says how they went; a line, which has more room than a bar, adds `more`."""
        self._bars.update(self._task, completed=step, description=text)
        left = (time.monotonic() - self._started) / max(step - self._first, 1) * (self.total - step)
        parts = (f"{self.unit} {step}/{self.total}", text, more, f"{duration(left)} left" if step < self.total else "")
        self._line("  ".join(part for part in parts if part), always=step in (self._first + 1, self.total))

    @contextlib.contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A count within a step; call what this gives with the number of those just done."""
        task, done = self._bars.add_task(what, total=total), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._bars.advance(task, count)
            self._line(f"{what}: {done}/{total}")

        try:
            yield advance
        finally:
            self._bars.remove_task(task)

    def say(self, line: str) -> None:
        """A line of its own, above the bar where there is one."""
        if not self.shown:
            return
        if self._bars.disable:
            print(line, flush=True)
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _line(self, line: str, always: bool = False) -> None:
        now = time.monotonic()
        if self._bars.disable and (always or now - self._last_line >= LINE_SECONDS):
            self._last_line = now
            self.say(line)


def duration(seconds: float) -> str:
    """A time to be read: 12 s, 4 min 07 s, 3 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
