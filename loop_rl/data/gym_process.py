"""The parent's side of reasoning-gym's own process: making questions, and scoring answers within a time limit."""

import atexit
import contextlib
import json
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 5.0  # for one answer; the scorers of ordinary answers need milliseconds
LIMITS = f"{SECONDS:g} s an answer, without writing, processes or sockets"
_START_SECONDS = 120.0  # importing the package on a busy machine


class ScorerFailed(Exception):
    """The generator's scorer raised, ran past its time or died; the message says which."""


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loop_rl.data.gym_child", *arguments]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def make_items(generator: str, seed: int, train: int, test: int) -> dict[str, Any]:
    """What `gym_child.made` returns, made in a process of its own.

    Raises:
        RuntimeError: the process itself failed; the message ends with its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "items"
        done = subprocess.run(
            _command("make", generator, str(seed), str(train), str(test), str(file)),
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"making {generator} failed (exit code {done.returncode}): {last}")
        return pickle.loads(file.read_bytes())  # our own process wrote it, and ran no model's answer


class GymScorer:
    """One process that scores, started when first needed and again after it was lost or killed."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._rest = b""

    def score(self, generator: str, answer: str, entry: dict[str, Any]) -> float:
        """1.0 or 0.0.

        Raises:
            ScorerFailed: this answer could not be scored.
            RuntimeError: no answer can be: the process doesn't start.
        """
        self.start()
        try:
            pickle.dump((generator, answer, entry), self._process.stdin)
            self._process.stdin.flush()
            line = self._read_line(self._seconds)
        except TimeoutError:
            self.close()
            raise ScorerFailed(f"no score within {self._seconds:g} s") from None
        except (OSError, EOFError):
            raise ScorerFailed(f"the scorer's process ended (exit code {self.close()})") from None
        reply = json.loads(line)
        if "error" in reply:
            raise ScorerFailed(str(reply["error"]))
        return float(reply["score"])

    def close(self) -> int | None:
        """Ends the process, if this is the one that started it; its exit code if it had ended by itself."""
        process, self._process, self._rest = self._process, None, b""
        if process is None or self._owner != os.getpid():
            return None
        try:
            code = process.wait(0.1)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):  # a broken pipe: what is left unsent
            process.stdin.close()
        return code

    def start(self) -> None:
        """Starts the process where none runs; RuntimeError if it doesn't get ready."""
        if self._owner != os.getpid():  # after a fork the pipe belongs to the parent
            self._process, self._rest, self._owner = None, b"", os.getpid()
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._process = subprocess.Popen(
            _command("score"),
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._read_line(_START_SECONDS)  # it says when it is ready
        except (OSError, EOFError):
            code = self.close()
            raise RuntimeError(
                f"reasoning-gym's scorers don't start (exit code {code}); `python -m loop_rl.data.gym_child score` "
                "shows why"
            ) from None

    def _read_line(self, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                read = os.read(self._process.stdout.fileno(), 65536)
                if not read:
                    raise EOFError
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line


SCORER = GymScorer()
atexit.register(SCORER.close)
