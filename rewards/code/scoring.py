"""What the rewards of MBPP and MBPP+ share: this process's sandbox, judging outputs as they come, and verdicts."""

import logging
import os
import threading
from collections.abc import Callable, Sequence

from rewards.sandbox.inside.encode import DIGEST, VALUE
from rewards.sandbox.pool import SandboxPool
from rewards.sandbox.worker import Ending, SandboxError, Worker, class_name

_log = logging.getLogger(__name__)

Scored = tuple[float | None, str]  # a reward and its reason
NO_ANSWER: Scored = (0.0, "no answer")


class _Shared:
    """The pool of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pool: SandboxPool | None = None

    def get(self, workers: int | None = None) -> SandboxPool:
        with self._lock:
            if self.pool is None:
                self.pool = SandboxPool(workers=workers)
                _log.log(logging.WARNING if "NOT" in self.pool.line else logging.INFO, "MBPP: %s", self.pool.line)
            return self.pool

    def close(self) -> None:
        with self._lock:
            pool, self.pool = self.pool, None
        if pool:
            pool.close()


shared = _Shared()
os.register_at_fork(after_in_child=shared.__init__)  # the threads stayed in the parent


def score_all(attempts: Sequence[Callable[[Worker], Scored] | Scored]) -> list[Scored]:
    """Run each attempt in the shared sandbox; what is scored already stays. A failure of the sandbox scores None."""
    if not any(map(callable, attempts)):
        return list(attempts)
    try:
        pool = shared.get()
        futures = [
            pool.submit(lambda worker, attempt=attempt: _twice(attempt, worker)) if callable(attempt) else attempt
            for attempt in attempts
        ]
    except SandboxError as error:
        return [(None, f"not scored: {error}") if callable(attempt) else attempt for attempt in attempts]
    return [future if isinstance(future, tuple) else future.result() for future in futures]


def _twice(attempt: Callable[[Worker], Scored], worker: Worker) -> Scored:
    try:
        return attempt(worker)
    except SandboxError:  # it may pass, as when memory was short
        try:
            return attempt(worker)
        except SandboxError as error:
            return None, f"not scored: {error}"


class Judge:
    """Compares a program's outputs with what is expected, as they come.

    Args:
        matches: whether an output (index, kind, payload) is right.
        name_input: how reasons call an input.
        inputs: how many there are.
        share: go on behind a wrong output, and reward the share of right ones.
    """

    def __init__(
        self, matches: Callable[[int, bytes, bytes], bool], name_input: Callable[[int], str], inputs: int, share: bool
    ):
        self._matches, self._name_input, self._inputs, self._share = matches, name_input, inputs, share
        self._right, self._problem = 0, ""

    def see(self, index: int, kind: bytes, payload: bytes) -> bool:
        """Judge one output; False: no further ones are needed."""
        if kind not in (VALUE, DIGEST):
            name = class_name(payload)
            problem = "memory limit" if name == "MemoryError" else f"{name} at {self._name_input(index)}"
        elif not self._matches(index, kind, payload):
            problem = self._name_input(index)
        else:
            self._right += 1
            return True
        self._problem = self._problem or problem
        return self._share

    def verdict(self, ending: Ending, entry_point: str) -> Scored:
        """The reward and its reason, once the program has ended. Only right outputs for all inputs make it correct."""
        if self._right == self._inputs and ending.kind == "done":
            return 1.0, "correct"
        if ending.kind == "undefined":
            return 0.0, f"no answer: {entry_point} is not defined"
        problem = self._problem
        if not problem and ending.kind == "failed":
            problem = "memory limit" if ending.detail == "MemoryError" else ending.detail
        if not problem and ending.kind == "ended":
            problem = f"its process ended {ending.detail}".rstrip()
        reward = self._right / self._inputs if self._share and self._right < self._inputs else 0.0
        return reward, f"wrong: {problem or ending.kind}"
