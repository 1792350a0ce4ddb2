"""MBPP+'s reward: a program is run on all base and plus inputs of its task, and its outputs are compared here.

The program runs in a process that holds no expected output and sends back plain data (`rewards.sandbox`); neither an
exit status, nor a printed line, nor an object's own operators decide anything. What counts as right is evalplus' rule
(`rewards.code.oracle`); which part of a completion is its program is told by `rewards.code.program`; expected outputs
are made once from the canonical solutions (`rewards.code.expected`).

Limits follow the canonical solution: 4 times its CPU time and at least 4 s for all inputs together, twice its memory
and at least 1 GiB. Wall time is limited to twice the CPU limit and 5 s: a right program passes on a busy machine.
"""

import marshal
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rewards.code.expected import CanonicalError, ExpectedOutputs, Output, cache_folder, digest
from rewards.code.oracle import NOT_NONE, is_right
from rewards.code.program import extract_program
from rewards.code.scoring import NO_ANSWER, Judge, Scored, score_all, shared
from rewards.code.tasks import FILE_NAMES, MbppTask, find_data, load_tasks
from rewards.sandbox.inside.encode import DIGEST, VALUE
from rewards.sandbox.readable import visible
from rewards.sandbox.wire import UNBOUNDED, Malformed, Size, decode
from rewards.sandbox.worker import Job, Worker
from rewards.text import completion_text

__all__ = ["close", "load_tasks", "mbpp_plus_reward", "mbpp_plus_share_reward", "start", "tasks", "use_data"]

_ROOM_BYTES, _ROOM = 16 << 10, 1024  # what an output may exceed the expected one's size by, and still be compared
_NONE = marshal.dumps(None, 2)
_LogExtra = Callable[[str, list[str]], None]


def _matches(task: MbppTask, expected: Output, index: int, kind: bytes, payload: bytes) -> bool:
    """Whether an output is right for the input `index`."""
    name = task.entry_point
    if kind == expected.kind and payload == expected.payload:
        return True
    if expected.kind == DIGEST:
        return kind == VALUE and digest(payload) == expected.payload
    # An equal output is at most 9 times as long, a float for a bool. What is longer, or holds more, isn't read; that
    # bounds the time here, whatever a program sends.
    if kind == DIGEST or len(payload) > 9 * len(expected.payload) + _ROOM_BYTES:
        return name in NOT_NONE and expected.payload != _NONE
    gold, size = decode(expected.payload, UNBOUNDED)
    try:
        output, _ = decode(payload, Size(2 * size.values + _ROOM, 2 * size.hashed + _ROOM))
    except Malformed:
        return False
    return is_right(name, task.inputs[index], output, gold, expected.atol)


class _Scorer:
    """This process's data and expected outputs; loaded when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._loaded: tuple[Path, dict[str, MbppTask]] | None = None
        self._expected = ExpectedOutputs()

    def use(self, path: Path) -> None:
        """Take this file from now on."""
        self._path, self._loaded = path, None

    def after_fork(self) -> None:
        """Locks may have been held by threads that stayed in the parent."""
        self._lock, self._expected = threading.Lock(), ExpectedOutputs()

    def tasks(self) -> dict[str, MbppTask]:
        """The file's tasks by id."""
        path = self._path or find_data()
        with self._lock:
            if self._loaded is None or self._loaded[0] != path:
                self._loaded = path, load_tasks(path)
            return self._loaded[1]

    def exposed(self) -> str:
        """What to say when the answers lie where programs can read, as below /usr; "" when they don't."""
        answers = [(self._path or find_data()).resolve(), cache_folder().resolve()]
        folders = {str(path.parent) for path in answers if any(path.is_relative_to(seen) for seen in visible())}
        return f", but CAN READ the answers in {' and '.join(sorted(folders))}" if folders else ""

    def score(self, completions: Sequence[Any], names: Sequence[str], share: bool) -> list[Scored]:
        """The reward and the reason of each completion."""
        tasks = self.tasks()
        for name in names:
            if name not in tasks:
                raise ValueError(f"task_id: MBPP+ has no task {name!r} in {self._path or find_data()}")
        texts = [completion_text(completion) for completion in completions]
        attempts: list[Any] = []
        for text, name in zip(texts, names, strict=True):
            code = extract_program(text, tasks[name].entry_point)
            attempts.append(NO_ANSWER if code is None else partial(self._run, tasks[name], code, share))
        return score_all(attempts)

    def _run(self, task: MbppTask, code: str, share: bool, worker: Worker) -> Scored:
        try:
            expected = self._expected.get(task, worker)
        except CanonicalError as error:
            return None, f"not scored: {error}"

        def matches(index: int, kind: bytes, payload: bytes) -> bool:
            return _matches(task, expected.outputs[index], index, kind, payload)

        judge = Judge(matches, task.name_input, len(task.encoded), share)
        ending = worker.run(Job(code, task.entry_point, task.encoded), expected.limits, judge.see)
        return judge.verdict(ending, task.entry_point)


_scorer = _Scorer()


os.register_at_fork(after_in_child=lambda: _scorer.after_fork())


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


def tasks() -> dict[str, MbppTask]:
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
    return f"MBPP+: {shared.get(workers).line}{_scorer.exposed()}"


def close() -> None:
    """End the sandbox's processes; a later call makes new ones."""
    shared.close()


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
