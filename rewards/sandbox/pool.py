"""Workers for programs, each in a thread, and the canary that shows at start what the sandbox keeps programs from."""

import atexit
import marshal
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from rewards.sandbox.launch import Bubblewrap, Plain, bubblewraps
from rewards.sandbox.scratch import ScratchFolder
from rewards.sandbox.wire import UNBOUNDED, decode
from rewards.sandbox.worker import Job, Limits, SandboxError, Worker

T = TypeVar("T")
Launcher = Bubblewrap | Plain

# What a program tries at start, each to be refused: a read and a write outside, a socket, a process, a signal.
_CANARY = """
import os, socket

def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False

def probe(secret, folder, parent):
    return {
        "answer": sum(range(5)),
        "read": refused(lambda: open(secret).read()),
        "write": refused(lambda: open(os.path.join(folder, "written"), "w").close()),
        "network": refused(socket.socket),
        "process": refused(os.fork),
        "signal": refused(lambda: os.kill(parent, 0)),
    }
"""
_REFUSALS = {
    "read": "reading this user's files and memory",
    "write": "writing this user's files",
    "network": "the network",
    "process": "starting processes",
    "signal": "signals to other processes",
}


class SandboxPool:
    """Threads that each run one program at a time.

    A thread starts with the first task that finds no idle one, and lives until `close`. A process that forks has to
    make its own pool.

    Attributes:
        line: what protects, in words.

    Args:
        launcher: how processes are started; None: bubblewrap where it works, else without.
        workers: programs that run at once; None: as many as this process has cores.

    Raises:
        SandboxError: the sandbox does not work; one line says why.
    """

    def __init__(self, launcher: Launcher | None = None, workers: int | None = None):
        if sys.platform != "linux":
            raise SandboxError(f"programs can be contained on Linux only, not on {sys.platform}")
        try:
            self._scratch = ScratchFolder()
        except OSError as error:
            raise SandboxError(f"no temporary folder can be made ({error}); set TMPDIR to one") from error
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[Worker], Any]] | None] = queue.SimpleQueue()
        self._max_workers = workers or len(os.sched_getaffinity(0))
        self._workers: list[Worker] = []
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            if launcher is None:
                self._launcher, self.line = self._choose()
            else:
                self._launcher, self.line = launcher, describe(launcher, self._canary(launcher))
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox can't be made ({error})") from error
        except BaseException:
            self.close()
            raise

    def submit(self, task: Callable[[Worker], T]) -> "Future[T]":
        """Call `task(worker)` in a worker's thread, as soon as one is free."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            self._tasks.put((future, task))
            if not self._idle.acquire(blocking=False) and len(self._workers) < self._max_workers:
                worker = Worker(self._launcher)
                self._workers.append(worker)
                thread = threading.Thread(target=self._work, args=(worker,), name="sandbox", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """End the workers and whatever they run, and remove the scratch folders."""
        if self._owner != os.getpid():
            return  # a fork: the processes are the parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for worker in self._workers:
            worker.close()  # before its thread ends, with which its processes die, but unwaited for
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=10)
        self._scratch.remove()
        atexit.unregister(self.close)

    def _work(self, worker: Worker) -> None:
        while True:
            try:
                entry = self._tasks.get_nowait()
            except queue.Empty:
                self._idle.release()
                entry = self._tasks.get()
            if entry is None:
                return
            future, task = entry
            try:
                future.set_result(task(worker))
            except BaseException as error:
                future.set_exception(error)
            del future, task, entry  # an idle thread holds nothing

    def _choose(self) -> tuple[Launcher, str]:
        """How processes start, by the canary's word, and the line that says what protects."""
        without = "bubblewrap is not installed"
        for program in bubblewraps():
            try:
                wrapped = Bubblewrap(program)
                return wrapped, describe(wrapped, self._canary(wrapped))
            except (OSError, subprocess.SubprocessError, SandboxError) as error:
                without = f"bubblewrap does not work here ({error})"
        plain = Plain(self._scratch.path)
        return plain, f"{describe(plain, self._canary(plain))}; {without}"

    def _canary(self, launcher: Launcher) -> dict[str, bool]:
        """Run a program with a known answer; returns what it was refused."""
        probe = self._scratch.path / "probe"
        probe.touch()
        arguments = marshal.dumps((str(probe), str(probe.parent), os.getpid()), 2)
        outputs: list[bytes] = []

        def keep(index: int, kind: bytes, payload: bytes) -> bool:
            outputs.append(payload if kind == b"V" else b"")
            return True

        worker = Worker(launcher)
        try:
            ending = worker.run(Job(_CANARY, "probe", [arguments]), Limits(), keep)
        finally:
            worker.close()
        found = decode(outputs[0], UNBOUNDED)[0] if ending.kind == "done" and outputs[0] else None
        if not isinstance(found, dict) or found.pop("answer", None) != 10:
            raise SandboxError(f"a program with a known answer failed: {ending.kind} {ending.detail}".rstrip())
        if not (found["process"] and found["signal"]):
            raise SandboxError("a program could start processes: the seccomp filter is not in force")
        return found


def describe(launcher: Launcher, refused: dict[str, bool]) -> str:
    """One line: how programs are contained, and what of it is missing."""
    by = "in bubblewrap's namespaces and under seccomp" if isinstance(launcher, Bubblewrap) else "under seccomp"
    if isinstance(launcher, Plain) and refused["read"]:
        by += " and Landlock"
    missing = [name for kind, name in _REFUSALS.items() if not refused[kind]]
    return f"programs run {by}" + (f", NOT kept from {' or '.join(missing)}" if missing else "")
