"""A pool of worker processes that judge pairs, each pair within a time limit, whatever it holds.

The workers are started by exec, never by forking the caller's state, so that the pool works the same in a main thread,
a thread, a Ray actor, after CUDA and under the caller's own alarms: it uses no signal in the caller's process.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TIME_LIMIT = 5.0  # seconds of wall time for a pair
START_LIMIT = 120.0  # seconds for a worker's imports, on a loaded machine
WORKERS = 2
_GRACE = 0.5  # seconds the caller waits beyond the worker's own alarm before it kills it

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rewards.math.worker import main; main(float(sys.argv[2]))"
)


class PoolError(RuntimeError):
    """No worker can be started, or it judges a known pair wrongly: our failure, and no completion's."""


class Verdict(NamedTuple):
    """`correct`, `wrong`, `problem` (with the gold) or `failed` (on our side), and why."""

    outcome: str
    why: str


class _Worker:
    """One process and its pipes. Standard error is dropped: nothing a completion causes is written to the terminal."""

    def __init__(self) -> None:
        path = [entry for entry in sys.path if entry] + [str(Path(__file__).resolve().parents[2])]
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CODE, json.dumps(path), str(TIME_LIMIT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**kept, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise PoolError(f"the process that reads answers can't be started ({error.strerror})") from error
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout
        self.ready = False
        self.task: int | None = None
        self.received = b""
        self.deadline = time.monotonic() + START_LIMIT

    def send(self, task: int, pair: tuple[str, str]) -> bool:
        """Gives it a pair; False if it has died meanwhile."""
        try:
            self.input.write(json.dumps(pair).encode() + b"\n")
        except OSError:
            return False
        self.task, self.deadline = task, time.monotonic() + TIME_LIMIT + _GRACE
        return True

    def receive(self) -> bytes | None:
        """A whole line; b"" while there is none, None at the end."""
        received = self.output.read(1 << 16)
        if not received:
            return None
        self.received += received
        if not self.received.endswith(b"\n"):
            return b""
        line, self.received = self.received, b""
        return line

    def end(self, patience: float = 0.0) -> int:
        """Kills it if it doesn't end within seconds of its own; the exit status, negative for a signal."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
        status = self.process.wait()
        self.input.close()
        self.output.close()
        return status


class MathPool:
    """Up to `WORKERS` processes, started when there is work for them. Batches of several threads take turns."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.lock = threading.Lock()

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """A verdict for each (gold, answer).

        Raises:
            PoolError: no healthy worker can be had.
        """
        with self.lock:
            try:
                return self._judge(pairs)
            except BaseException:
                self._end()  # an interrupted batch leaves no worker with a pair nobody waits for
                raise

    def start(self) -> None:
        """Starts one worker and waits until it is ready, so that the first batch doesn't. Raises PoolError."""
        self.judge([("1", "1")])

    def close(self) -> None:
        """Ends all workers; a later batch starts new ones."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers.clear()

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        verdicts: list[Verdict | None] = [None] * len(pairs)
        waiting = deque(range(len(pairs)))
        deaths = [0] * len(pairs)
        failed_starts = 0
        while None in verdicts:
            for worker in [worker for worker in self.workers if worker.ready and worker.task is None]:
                if waiting and not worker.send(waiting[0], pairs[waiting[0]]):
                    self._remove(worker)
                elif waiting:
                    waiting.popleft()
            starting = sum(not worker.ready for worker in self.workers)
            while len(self.workers) < WORKERS and starting < len(waiting):
                self.workers.append(_Worker())
                starting += 1
            for worker, heard in self._next():
                line = worker.receive() if heard else None
                if line == b"":
                    continue
                reply = None if line is None else json.loads(line)
                task, worker.task = worker.task, None
                if worker.ready and task is not None and reply is not None:
                    verdicts[task] = Verdict(*reply)
                elif reply is True:
                    worker.ready = True
                else:
                    status = self._remove(worker, patience=_GRACE if heard and line is None else 0.0)
                    timed_out = status == -signal.SIGALRM or not heard
                    if task is None:
                        failed_starts += 1
                        if failed_starts > 1:
                            raise PoolError("the process that reads answers fails its own check")
                        continue
                    deaths[task] += 1
                    if timed_out:
                        verdicts[task] = Verdict("wrong", "time limit")
                    elif status == -signal.SIGKILL and deaths[task] > 1:
                        verdicts[task] = Verdict(
                            "failed", "its process was killed from outside, as when memory is short"
                        )
                    elif deaths[task] > 1:  # of two workers that had judged a known pair right
                        verdicts[task] = Verdict("wrong", "it breaks the process that reads it")
                    else:
                        waiting.appendleft(task)
        return [verdict for verdict in verdicts if verdict is not None]

    def _remove(self, worker: _Worker, patience: float = 0.0) -> int:
        self.workers.remove(worker)
        return worker.end(patience)

    def _next(self) -> list[tuple[_Worker, bool]]:
        """The workers that have something to say (True), or have run out of time (False); waits for the first."""
        poll = select.poll()
        busy = {
            worker.output.fileno(): worker for worker in self.workers if not worker.ready or worker.task is not None
        }
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        wait = min(worker.deadline for worker in busy.values()) - time.monotonic()
        heard = {descriptor for descriptor, _ in poll.poll(max(0.0, wait) * 1000 + 1)}
        now = time.monotonic()
        late = [fd for fd, worker in busy.items() if worker.deadline <= now and fd not in heard]
        return [(busy[fd], True) for fd in heard] + [(busy[fd], False) for fd in late]


_pools: dict[int, MathPool] = {}


def pool() -> MathPool:
    """This process's pool. A forked child has its own, and lets go of its parent's pipes."""
    own = _pools.setdefault(os.getpid(), MathPool())
    for process in [process for process in _pools if process != os.getpid()]:
        _pools.pop(process, None)
    return own
