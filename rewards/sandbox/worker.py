"""One program in one process, watched from outside: time, threads, size of what it writes, how it ended."""

import marshal
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rewards.sandbox.inside.encode import LARGEST_VALUE
from rewards.sandbox.launch import SCRATCH_BYTES, Bubblewrap, Plain, Process
from rewards.sandbox.wire import Malformed, Size, decode

STARTUP = 60.0  # seconds a new process may take, on however busy a machine
_TICK = 0.1  # seconds between looks at a running process
_THREADS = 256
_LONGEST_FRAME = LARGEST_VALUE + 64
_CLOCK = os.sysconf("SC_CLK_TCK")

OnOutput = Callable[[int, bytes, bytes], bool]


class SandboxError(RuntimeError):
    """The sandbox failed, not the program in it."""


@dataclass(frozen=True)
class Limits:
    """What a program may take. CPU time is the limit that right programs meet; wall time ends the sleeping ones."""

    cpu: float = 4.0  # seconds of all its threads
    memory: int = 1 << 30  # bytes of address space

    @property
    def wall(self) -> float:
        """Seconds: enough for the CPU time on a machine with more than twice the work that its cores can do."""
        return 2 * self.cpu + 5


class Job(NamedTuple):
    """A program, and the inputs its entry point is called with."""

    code: str
    entry_point: str
    inputs: Sequence[bytes]  # each a tuple or list of arguments, by marshal


class Ending(NamedTuple):
    """How a program ended.

    kind: "done" (all inputs ran), "stopped" (by `on_output`), "failed" (it raised before any call; `detail` is the
    class), "undefined" (no entry point), "time limit", "output limit", "process limit", "disk limit", or "ended" (the
    process ended by itself, or wrote what is no answer).
    """

    kind: str
    detail: str = ""
    cpu: float = 0.0  # seconds, "done" only
    memory: int = 0  # peak bytes, "done" only


class _Frames:
    """Splits what a process writes into frames, waiting for each until a deadline."""

    def __init__(self, process: Process):
        self._stream = process.answers.fileno()
        self._poll = select.poll()
        self._poll.register(self._stream, select.POLLIN)
        self._bytes = bytearray()

    def next(self, seconds: float) -> tuple[bytes, bytes] | None:
        """The next frame, or None when `seconds` pass without it.

        Raises:
            EOFError: no more will come.
            OverflowError: longer than any that is sent.
        """
        deadline = time.monotonic() + seconds
        while (frame := self._complete()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                return None
            part = os.read(self._stream, 1 << 18)
            if not part:
                raise EOFError
            self._bytes += part
        return frame

    def _complete(self) -> tuple[bytes, bytes] | None:
        if len(self._bytes) < 5:
            return None
        length = int.from_bytes(self._bytes[1:5], "little")
        if length > _LONGEST_FRAME:
            raise OverflowError
        if len(self._bytes) < 5 + length:
            return None
        frame = bytes(self._bytes[:1]), bytes(self._bytes[5 : 5 + length])
        del self._bytes[: 5 + length]
        return frame


class Worker:
    """Runs programs one after another, each in a process of its own; the next process starts while one runs.

    Belongs to one thread, which has to live as long as it does.
    """

    def __init__(self, launcher: Bubblewrap | Plain):
        self._launcher = launcher
        self._spare: Process | None = None
        self._running: Process | None = None
        self._closed = False

    def close(self) -> None:
        """End the waiting process and kill a running one, which `run` then reports. From any thread."""
        running, spare = self._running, self._spare
        self._closed, self._spare = True, None
        if running:
            running.kill()
        if spare:
            spare.end()

    def run(self, job: Job, limits: Limits, on_output: OnOutput) -> Ending:
        """Run a program; `on_output(index, kind, payload)` sees each output as it comes, and says whether to go on.

        Kinds are "V" (a value, see `wire.decode`), "D" (the digest of one too large to send) and "X" (the call raised;
        the class). Nothing of the process or of its scratch folder is left on return.

        Raises:
            SandboxError: the process did not start, ended before the program began, or was killed from outside.
        """
        process, self._spare = self._spare or self._start(), None
        self._running = process
        status = None
        try:
            frames = _Frames(process)
            _hand_over(process, frames, job, limits)
            if not self._closed:
                self._spare = self._start()
            ending = _Watch(process, frames, limits).run(len(job.inputs), on_output)
            if ending.kind == "ended":  # bubblewrap needs a moment to say how its process ended
                status = process.wait_briefly()
        except OSError as error:
            raise SandboxError(f"the sandbox failed ({error})") from error
        finally:
            self._running = None
            process.end()
        if ending.kind == "ended" and status is not None and status < 0:
            return _by_signal(-status)
        return ending

    def _start(self) -> Process:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        try:
            return self._launcher.start()
        except OSError as error:
            raise SandboxError(f"no sandbox could be started ({error})") from error


def _by_signal(number: int) -> Ending:
    if number == signal.SIGXCPU:
        return Ending("time limit")
    if number == signal.SIGKILL:
        # A program can't send it to itself; where its CPU limit did, _Watch has noticed.
        raise SandboxError("the program's process was killed from outside, as when memory runs out")
    return Ending("ended", signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}")


def _hand_over(process: Process, frames: _Frames, job: Job, limits: Limits) -> None:
    """Give a waiting process its program, and see it begin."""
    limited = (int(limits.cpu + 1.999), limits.memory)  # the kernel's own limit, in whole seconds, is the second guard
    message = memoryview(marshal.dumps((job.code, job.entry_point, list(job.inputs), *limited), 2))
    try:
        ready = frames.next(STARTUP)
        if ready is None or ready[0] != b"P":
            raise SandboxError(f"the sandbox did not start within {STARTUP:.0f} s")
        while message:
            message = message[process.job.write(message) :]
        process.job.close()
        if frames.next(STARTUP) != (b"B", b""):
            raise SandboxError("the sandbox took no program")
    except (EOFError, OverflowError, BrokenPipeError):
        raise SandboxError("the sandbox ended before its program began") from None


class _Watch:
    """Reads a running program's answers and looks at its process now and then."""

    def __init__(self, process: Process, frames: _Frames, limits: Limits):
        self._process, self._frames, self._limits = process, frames, limits
        self._looked, self._cpu, self._threads = time.monotonic(), 0.0, 1
        self._look()
        self._cpu_limit, self._end = self._cpu + limits.cpu, self._looked + limits.wall

    def run(self, inputs: int, on_output: OnOutput) -> Ending:
        index = 0
        try:
            while True:
                frame = self._frames.next(_TICK)
                if time.monotonic() - self._looked > _TICK and (over := self._over()):
                    return Ending(over)
                if frame is None and time.monotonic() > self._end:
                    return Ending("time limit")
                if frame is None:
                    continue
                kind, payload = frame
                if kind in (b"V", b"D", b"X") and index < inputs:
                    if not on_output(index, kind, payload):
                        return Ending("stopped")
                    index += 1
                elif kind == b"F":
                    return Ending("failed", class_name(payload))
                elif kind == b"M":
                    return Ending("undefined")
                elif kind == b"E" and index == inputs:
                    return Ending("done", "", *_usage(payload))
                else:
                    return Ending("ended", "with answers that are none")
        except EOFError:
            return Ending("time limit" if self._used_up() else "ended")
        except OverflowError:
            return Ending("output limit")

    def _over(self) -> str | None:
        """The limit that the program is past; wall time is looked at only when no answer is waiting to be read."""
        self._look()
        if self._cpu > self._cpu_limit:
            return "time limit"
        if self._threads > _THREADS:
            return "process limit"
        if self._process.scratch and _size(self._process.scratch) > SCRATCH_BYTES:
            return "disk limit"
        return None

    def _used_up(self) -> bool:
        """Whether a program that has ended can have been ended by the kernel's CPU limit."""
        if self._look():
            return self._cpu > self._cpu_limit
        # bubblewrap has waited for it already, and what it used since the last look is unknown
        unseen = (time.monotonic() - self._looked) * min(self._threads, os.cpu_count() or 1)
        return self._cpu + unseen > self._cpu_limit

    def _look(self) -> bool:
        """Read the process's CPU seconds and number of threads; False: there is no process any more."""
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return False
        self._looked = time.monotonic()
        self._cpu, self._threads = (int(fields[11]) + int(fields[12])) / _CLOCK, int(fields[17])
        return True


def class_name(payload: bytes) -> str:
    """The name in a frame of kind X or F, fit to be shown."""
    return "".join(letter if letter.isprintable() else "?" for letter in payload[:60].decode("ascii", "replace"))


def _usage(payload: bytes) -> tuple[float, int]:
    try:
        cpu, memory = decode(payload, Size(values=3, hashed=0))[0]
        return float(cpu), int(memory)
    except (Malformed, TypeError, ValueError, OverflowError):
        return 0.0, 0


def _size(folder: Path) -> int:
    """Bytes in a scratch folder, which holds no others, with 4 KiB for each file."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                total += 4096 + entry.stat(follow_symlinks=False).st_size
            except OSError:
                pass  # removed meanwhile
    return total
