"""MBPP+'s reward: a program is run on all base and plus inputs of its task, and its outputs are compared here.

The program runs in a process that holds no expected output and sends back plain data (`rewards.sandbox`); neither an
exit status, nor a printed line, nor an object's own operators decide anything. What counts as right is evalplus' rule
(`rewards.mbpp_oracle`); which part of a completion is its program is told by `rewards.mbpp_program`; expected outputs
are made once from the canonical solutions (`rewards.mbpp_expected`).

Limits follow the canonical solution: 4 times its CPU time and at least 4 s for all inputs together, twice its memory
and at least 1 GiB. Wall time is limited to twice the CPU limit and 5 s: a right program passes on a busy machine.
"""

import logging
import marshal
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rewards.mbpp_expected import CanonicalError, Expected, ExpectedOutputs, digest
from rewards.mbpp_oracle import NOT_NONE, is_right
from rewards.mbpp_program import extract_program
from rewards.mbpp_tasks import FILE_NAMES, Task, find_data, load_tasks
from rewards.sandbox.inside.encode import DIGEST, VALUE
from rewards.sandbox.pool import Pool
from rewards.sandbox.wire import UNBOUNDED, Malformed, Size, decode
from rewards.sandbox.worker import Ending, Job, SandboxError, Worker, class_name
from rewards.text import completion_text

__all__ = ["close", "load_tasks", "mbpp_plus_reward", "mbpp_plus_share_reward", "start", "tasks", "use_data"]

_log = logging.getLogger(__name__)
_ROOM_BYTES, _ROOM = 16 << 10, 1024  # what an output may exceed the expected one's size by, and still be compared
_NONE = marshal.dumps(None, 2)
_LogExtra = Callable[[str, list[str]], None]


class Judge:
    """Compares a program's outputs with the expected ones as they come.

    Attributes:
        right: how many were.
        problem: what was wrong first; None so far.
    """

    def __init__(self, task: Task, expected: Expected, to_the_end: bool):
        self._task, self._expected, self._to_the_end = task, expected, to_the_end
        self.right, self.problem = 0, None

    def see(self, index: int, kind: bytes, payload: bytes) -> bool:
        """Judge one output; False: no further ones are needed."""
        if kind not in (VALUE, DIGEST):
            name = class_name(payload)
            problem = "memory limit" if name == "MemoryError" else f"{name} at {self._task.name_input(index)}"
        elif not self._matches(index, kind, payload):
            problem = self._task.name_input(index)
        else:
            self.right += 1
            return True
        self.problem = self.problem or problem
        return self._to_the_end

    def _matches(self, index: int, kind: bytes, payload: bytes) -> bool:
        expected, name = self._expected.outputs[index], self._task.entry_point
        if kind == expected.kind and payload == expected.payload:
            return True
        # An equal output is at most 9 times as long, a float for a bool. What is longer, or holds more, isn't read;
        # that bounds the time here, whatever a program sends.
        long = kind == DIGEST or len(payload) > 9 * len(expected.payload) + _ROOM_BYTES
        if expected.kind == DIGEST:
            return kind == VALUE and digest(payload) == expected.payload
        if long:
            return name in NOT_NONE and expected.payload != _NONE
        gold, size = decode(expected.payload, UNBOUNDED)
        try:
            output, _ = decode(payload, Size(2 * size.values + _ROOM, 2 * size.hashed + _ROOM))
        except Malformed:
            return False
        return is_right(name, self._task.inputs[index], output, gold, expected.atol)


class _Scorer:
    """This process's sandbox, data and expected outputs; made when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._path: Path | None = None
        self._loaded: tuple[Path, dict[str, Task]] | None = None
        self._expected = ExpectedOutputs()

    def use(self, path: Path) -> None:
        self._path = path

    def pool(self, workers: int | None = None) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(workers=workers)
                _log.log(logging.WARNING if "NOT" in self._pool.line else logging.INFO, "MBPP+: %s", self._pool.line)
            return self._pool

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.close()

    def tasks(self) -> dict[str, Task]:
        path = self._path or find_data()
        with self._lock:
            if self._loaded is None or self._loaded[0] != path:
                self._loaded = path, load_tasks(path)
            return self._loaded[1]

    def score(self, completions: Sequence[Any], names: Sequence[str], share: bool) -> list[tuple[float | None, str]]:
        """The reward and the reason of each completion."""
        tasks = self.tasks()
        for name in names:
            if name not in tasks:
                raise ValueError(f"task_id: MBPP+ has no task {name!r} in {self._path or find_data()}")
        texts = [completion_text(completion) for completion in completions]
        programs = [extract_program(text, tasks[name].entry_point) for text, name in zip(texts, names, strict=True)]
        if all(program is None for program in programs):
            return [(0.0, "no answer")] * len(programs)
        try:
            pool = self.pool()
            futures = [
                program
                and pool.submit(lambda worker, task=tasks[name], code=program: self._run(worker, task, code, share))
                for program, name in zip(programs, names, strict=True)
            ]
        except SandboxError as error:
            return [(None, f"not scored: {error}")] * len(programs)
        return [future.result() if future else (0.0, "no answer") for future in futures]

    def _run(self, worker: Worker, task: Task, code: str, share: bool) -> tuple[float | None, str]:
        failure = ""
        for _ in range(2):  # a failure of ours may pass, as when memory was short
            try:
                expected = self._expected.get(task, worker)
                judge = Judge(task, expected, to_the_end=share)
                ending = worker.run(Job(code, task.entry_point, task.encoded), expected.limits, judge.see)
                return _verdict(judge, ending, task, share)
            except CanonicalError as error:
                return None, f"not scored: {error}"
            except SandboxError as error:
                failure = str(error)
        return None, f"not scored: {failure}"


def _verdict(judge: Judge, ending: Ending, task: Task, share: bool) -> tuple[float, str]:
    total = len(task.encoded)
    if judge.right == total and ending.kind == "done":
        return 1.0, "correct"
    reward = judge.right / total if share and judge.right < total else 0.0
    if ending.kind == "undefined":
        return 0.0, f"no answer: {task.entry_point} is not defined"
    if judge.problem:
        return reward, f"wrong: {judge.problem}"
    if ending.kind == "failed":
        return reward, "wrong: memory limit" if ending.detail == "MemoryError" else f"wrong: {ending.detail}"
    if ending.kind == "ended":
        return reward, f"wrong: its process ended {ending.detail}".rstrip()
    return reward, f"wrong: {ending.kind}"


_scorer = _Scorer()


def _forget_after_fork() -> None:
    global _scorer  # its threads stayed in the parent
    path = _scorer._path
    _scorer = _Scorer()
    _scorer._path = path


os.register_at_fork(after_in_child=_forget_after_fork)


def use_data(path: str | Path) -> None:
    """Score with this file, or the file in this folder, instead of what the environment names.

    Raises:
        ValueError: there is none.
    """
    path = Path(path)
    found = [file for file in (path, *(path / name for name in FILE_NAMES)) if file.is_file()]
    if not found:
        raise ValueError(f"{path}: no {FILE_NAMES[0]} there; MBPP+ needs it")
    _scorer.use(found[0])


def tasks() -> dict[str, Task]:
    """The tasks that are scored, by id.

    Raises:
        ValueError: MBPP+'s file is missing or damaged.
    """
    return _scorer.tasks()


def start(workers: int | None = None) -> str:
    """Make the sandbox, run a program with a known answer in it, and return the line that says what protects.

    Args:
        workers: programs that run at once; None: as many as this process has cores.

    Raises:
        RuntimeError: the sandbox does not work here.
        ValueError: MBPP+'s file is missing or damaged.
    """
    _scorer.tasks()
    return f"MBPP+: {_scorer.pool(workers).line}"


def close() -> None:
    """End the sandbox's processes; a later call makes new ones."""
    _scorer.close()


def _rewards(
    completions: Sequence[Any], task_id: Sequence[str], log_extra: _LogExtra | None, share: bool
) -> list[float | None]:
    if len(completions) != len(task_id):
        raise ValueError(f"task_id: {len(task_id)} for {len(completions)} completions")
    scored = _scorer.score(completions, task_id, share)
    if log_extra:
        log_extra("reason", [reason for _, reason in scored])
    return [reward for reward, _ in scored]


def mbpp_plus_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    task_id: Sequence[str],
    log_extra: _LogExtra | None = None,
    **columns: Any,
) -> list[float | None]:
    """1.0 when a completion's program gives the right output for every base and plus input of its task, else 0.0.

    None (not scored) is for failures of the sandbox, never of the program.

    Args:
        prompts: not read; part of the signature.
        completions: strings, or lists of chat messages whose last one is scored.
        completion_ids: not read.
        task_id: a task each, "Mbpp/2".
        log_extra: called with "reason" and a reason each: "correct", "wrong: base input 3" (numbered as in the data),
            "wrong: NameError at plus input 0", "wrong: time limit", "wrong: memory limit", "no answer",
            "no answer: f is not defined", "not scored: ...".
        columns: the data set's other columns; not read.

    Raises:
        ValueError: an unknown task, a missing or damaged data file, not as many tasks as completions.
        TypeError: a completion that is neither text nor messages.
    """
    return _rewards(completions, task_id, log_extra, share=False)


def mbpp_plus_share_reward(
    prompts: Sequence[Any],
    completions: Sequence[str | Sequence[dict[str, Any]]],
    completion_ids: Sequence[Sequence[int]] | None = None,
    *,
    task_id: Sequence[str],
    log_extra: _LogExtra | None = None,
    **columns: Any,
) -> list[float | None]:
    """As `mbpp_plus_reward`, but the share of its task's inputs that a program gives the right output for."""
    return _rewards(completions, task_id, log_extra, share=True)
