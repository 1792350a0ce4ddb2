"""Ends what Ray leaves of a run whose process was killed: workers, which hold GPU memory, agents, and its folder.

Ray's servers die with the process that started them; its workers and agents do not. All of them inherit a variable that
names their owner, by which a process beside the run, and the next run in its absence, know whom to end. Run as a
script, so it imports nothing else of the project.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "LOOP_RL_RAY_OWNER"
_SECONDS = 5.0  # for what was just being started to appear
_MARK = "loop-rl-owner"


def identity(pid: int) -> str | None:
    """A process, told apart from a later one of the same number and from those of other containers; None if dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        return f"{pid}:{fields[19]}:{os.readlink(f'/proc/{pid}/ns/pid')}"
    except OSError:
        return None


def owned(owner: str | None = None) -> dict[int, str]:
    """This user's processes with an owner, or with that one: the owner of each."""
    found = {}
    folders = _folders()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.getuid():
                one = _owner_of(entry, folders)
                if one is not None and owner in (None, one):
                    found[int(entry.name)] = one
    return found


def _owner_of(process: Path, folders: dict[str, str]) -> str | None:
    variables = (process / "environ").read_bytes()
    for line in variables.split(b"\0"):
        name, _, value = line.partition(b"=")
        if name == VARIABLE.encode():
            return value.decode()
    if (process / "cmdline").read_bytes().startswith(b"ray::"):  # its title lies over the variables; its logs are open
        for file in (process / "fd").iterdir():
            folder = next((one for one in folders if os.readlink(file).startswith(f"{one}/")), None)
            if folder is not None:
                return folders[folder]
    return None


def _folders() -> dict[str, str]:
    """Folders of Ray instances that runs of this user started, with each one's owner."""
    found = {}
    base = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    for mark in Path(base, "ray").glob(f"session_*/{_MARK}"):
        with contextlib.suppress(OSError, ValueError):
            if mark.stat().st_uid == os.getuid() and not mark.parent.is_symlink():
                found[str(mark.parent.resolve())] = mark.read_text()
    return found


def _adopt(owner: str, since: float) -> None:
    """Marks the folder of an instance whose owner was ended while Ray was starting; Ray names it by the owner's pid."""
    base = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    for folder in Path(base, "ray").glob(f"session_*_{owner.split(':')[0]}"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime >= since and folder.stat().st_uid == os.getuid():
                (folder / _MARK).write_text(owner)


def _gone(owner: str) -> bool:
    """Whether an owner, of this container, is dead."""
    pid, _, namespace = owner.split(":", 2)
    return pid.isdigit() and namespace == os.readlink("/proc/self/ns/pid") and identity(int(pid)) != owner


def _end(processes: dict[int, str]) -> None:
    for pid in processes:
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def end_abandoned() -> None:
    """Ends the processes, and removes the folders, of owners that were killed."""
    _end({pid: owner for pid, owner in owned().items() if _gone(owner)})
    for folder, owner in _folders().items():
        if _gone(owner):
            shutil.rmtree(folder, ignore_errors=True)


class Reaper:
    """Names this process the owner of what it starts from now on, and has that ended if this process is killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._mark: Path | None = None
        self._owner, self._since = identity(os.getpid()), time.time()
        if self._owner is None:  # no /proc
            return
        os.environ[VARIABLE] = self._owner
        self._process = subprocess.Popen(
            [sys.executable, "-IS", __file__, self._owner, str(self._since)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, folder: Path) -> None:
        """Takes the folder of the Ray instance that has been started."""
        if self._owner is not None:
            self._mark = folder / _MARK
            self._mark.write_text(self._owner)

    def close(self) -> None:
        """The instance has been ended; what its servers left when they were killed is ended here."""
        os.environ.pop(VARIABLE, None)
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._mark is None:
            _adopt(self._owner or "", self._since)
        left = owned(self._owner)
        _end({pid: owner for pid, owner in left.items() if _parent(pid) not in (os.getpid(), *left)})
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return os.getpid()  # it has ended


def _wait_and_end(owner: str, since: float) -> None:
    pid = int(owner.split(":")[0])
    with contextlib.suppress(OSError):  # it has died already
        select.select([os.pidfd_open(pid)], [], [])
    if not _gone(owner):
        return
    with contextlib.suppress(OSError):  # Ray ends a process whose server died within a call, without a word
        print(
            f"loop-rl: process {pid} was killed, or ended by Ray, whose server died; what it left is ended; the same "
            "command goes on (loop-rl train: with --resume)",
            file=sys.stderr,
            flush=True,
        )
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        _adopt(owner, since)
        end_abandoned()
        time.sleep(0.2)


if __name__ == "__main__":
    _wait_and_end(sys.argv[1], float(sys.argv[2]))
