"""MBPP+'s expected outputs: what the canonical solutions give, made once in the sandbox and kept in a cache folder.

A file a task, `Mbpp-2` in CACHE/mbpp_plus, where CACHE is LOOP_RL_CACHE, else XDG_CACHE_HOME/loop-rl, else
~/.cache/loop-rl. Its first line names the format, the hash of the task and of Python's version, and a checksum; one
that doesn't fit is made again. An output of more than 4 MiB (one in Mbpp/255, of 1.2 GB) is kept as its digest, and is
then compared exactly: by type, and in the order of its elements.
"""

import hashlib
import json
import logging
import marshal
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rewards.code.oracle import NOT_NONE, tolerance
from rewards.code.tasks import MbppTask
from rewards.sandbox.inside.encode import DIGEST, VALUE
from rewards.sandbox.wire import UNBOUNDED, Malformed, decode
from rewards.sandbox.worker import Job, Limits, Worker, class_name

_log = logging.getLogger(__name__)

FORMAT = 1
LARGEST_STORED = 4 << 20  # bytes of one output
_LARGEST_FILE = 1 << 28  # bytes, unpacked
_GENEROUS = Limits(cpu=300.0, memory=8 << 30)
_FACTOR = 4.0  # a program may take this many times the canonical solution's CPU time
_FLOOR = Limits()


class CanonicalError(RuntimeError):
    """The canonical solution gives no outputs here, so that its task can't be scored."""


class Output(NamedTuple):
    """An expected output: its kind (VALUE or DIGEST), its payload, and the absolute tolerance there."""

    kind: bytes
    payload: bytes
    atol: float


@dataclass(frozen=True)
class Expected:
    """A task's expected outputs, one for each input, and what its canonical solution took.

    Attributes:
        cpu: seconds, for all inputs, with Python's own start.
        memory: bytes resident at most.
    """

    outputs: list[Output]
    cpu: float
    memory: int

    @property
    def limits(self) -> Limits:
        """What a program may take for all inputs: 4 times the canonical solution's CPU time and at least 4 s, twice
        its memory and at least 1 GiB."""
        return Limits(max(_FLOOR.cpu, _FACTOR * self.cpu), max(_FLOOR.memory, 2 * self.memory + (256 << 20)))


def cache_folder() -> Path:
    """The folder of the files."""
    if named := os.environ.get("LOOP_RL_CACHE"):
        return Path(named) / "mbpp_plus"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loop-rl" / "mbpp_plus"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ExpectedOutputs:
    """Expected outputs by task, from memory, the cache folder, or the canonical solution.

    Args:
        progress: called with a line before a canonical solution runs, but for those within two seconds of the last.
    """

    def __init__(self, progress: Callable[[str], None] = _tell):
        self._progress = progress
        self._known: dict[str, Expected] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._made, self._told = 0, 0.0

    def get(self, task: MbppTask, worker: Worker) -> Expected:
        """A task's expected outputs; `worker` runs its canonical solution where they are unknown.

        Raises:
            CanonicalError: it fails here.
            SandboxError: the sandbox does.
        """
        key = _key(task)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # a task's first completions come together, and one of them does the work
            if key not in self._known:
                path = cache_folder() / f"{task.task_id.replace('/', '-')}"
                found = _read(path, key, len(task.inputs))
                if found is None:
                    self._say(task, path.parent)
                    found = make_expected(task, worker)
                    _write(path, key, found)
                self._known[key] = found
            return self._known[key]

    def _say(self, task: MbppTask, folder: Path) -> None:
        with self._lock:
            self._made += 1
            if (now := time.monotonic()) - self._told > 2:
                self._told = now
                self._progress(f"MBPP+: expected outputs of {task.task_id} (number {self._made}; kept in {folder})")


def make_expected(task: MbppTask, worker: Worker) -> Expected:
    """Run a task's canonical solution on all its inputs.

    Raises:
        CanonicalError: it fails here, which the message explains.
        SandboxError: the sandbox does.
    """
    outputs: list[Output] = []
    problem = ""

    def keep(index: int, kind: bytes, payload: bytes) -> bool:
        nonlocal problem
        atol = outputs[-1].atol if outputs else task.atol
        if kind == VALUE:
            try:
                value, size = decode(payload, UNBOUNDED)
                atol = tolerance(atol, value)
                if size.opaque and task.entry_point not in NOT_NONE:
                    problem = "its output is no plain data"
            except Malformed as error:
                problem = f"its output can't be read ({error})"
        elif kind != DIGEST:
            problem = class_name(payload)
        if len(payload) > LARGEST_STORED:
            kind, payload = DIGEST, digest(payload)
        outputs.append(Output(kind, payload, atol))
        return not problem

    ending = worker.run(Job(task.canonical_solution, task.entry_point, task.encoded), _GENEROUS, keep)
    if ending.kind != "done":
        problem = problem or f"{ending.kind} {ending.detail}".rstrip()
        raise CanonicalError(f"the canonical solution of {task.task_id} fails here: {problem}")
    return Expected(outputs, ending.cpu, ending.memory)


def digest(payload: bytes) -> bytes:
    """What stands for a payload too long to keep or to send."""
    return hashlib.blake2b(payload, digest_size=32).digest()


def _key(task: MbppTask) -> str:
    parts = [FORMAT, list(sys.version_info[:2]), task.task_id, task.entry_point, task.canonical_solution]
    hashed = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16)
    for encoded in task.encoded:
        hashed.update(encoded)
    return hashed.hexdigest()


def _write(path: Path, key: str, expected: Expected) -> None:
    """Keep what was made; a folder that can't be written costs only the time to make it again."""
    content = zlib.compress(marshal.dumps((expected.cpu, expected.memory, [*map(tuple, expected.outputs)]), 2), 1)
    header = json.dumps({"format": FORMAT, "key": key, "checksum": digest(content).hex()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(header.encode() + b"\n" + content)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _log.warning("MBPP+: expected outputs can't be kept in %s (%s)", path.parent, error)


def _read(path: Path, key: str, inputs: int) -> Expected | None:
    """What a file keeps; None where there is none, or it isn't for this key, or it is damaged."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        told = json.loads(header)
        if told != {"format": FORMAT, "key": key, "checksum": digest(content).hex()}:
            return None
        cpu, memory, rows = decode(zlib.decompressobj().decompress(content, _LARGEST_FILE), UNBOUNDED)[0]
        outputs = [Output(*row) for row in rows]
    except (OSError, ValueError, TypeError, zlib.error):
        return None
    return Expected(outputs, cpu, memory) if len(outputs) == inputs else None
