"""One process in a run folder at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from loop_rl.errors import UserError
from loop_rl.interrupts import Interrupted

logger = logging.getLogger(__name__)

LOCK = ".lock"


@contextlib.contextmanager
def run_lock(run: Path, wanted: bool = True) -> Iterator[None]:
    """Hold the run folder, which is made if need be, against every other process; what stayed empty goes at the end.

    A POSIX lock: the system frees it when its process dies, however that happens; a forked child does not share it;
    NFS passes it on. Where the file system knows no locks, that is said and the run goes on without.

    Args:
        wanted: False makes this do nothing, for the ranks beside the one that writes.

    Raises:
        UserError: another process holds it, or it can't be made or written.
        Interrupted: in place of KeyboardInterrupt.
    """
    if not wanted:
        yield
        return
    made = [folder for folder in (run, *run.parents) if not folder.exists()]
    file = _acquire(run)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(str(error), resumable=(run / "recipe.yaml").is_file()) from error
    finally:
        (run / LOCK).unlink(missing_ok=True)  # before the lock goes: no one else's
        with contextlib.suppress(OSError):  # a reward function may have closed what it did not open
            os.close(file)
        with contextlib.suppress(OSError):  # not empty: a run is in it
            for folder in made:
                folder.rmdir()


def _acquire(run: Path) -> int:
    path = run / LOCK
    while True:
        try:
            run.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {run}: {error.strerror}; set run.folder to another") from None
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:  # the one before has just taken its empty folder away
            continue
        except OSError as error:
            raise UserError(f"cannot write in {run}: {error.strerror}; set run.folder to another") from None
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(file, 500, 0).decode(errors="replace").strip() or "another process"
            os.close(file)
            raise UserError(f"{run} is in use by {holder}; wait for its end or stop it, then --resume") from None
        except OSError as error:
            logger.warning("%s can't be locked (%s): a second run in it would not be noticed", run, error.strerror)
        if _is(file, path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return file
        os.close(file)  # its holder unlinked it meanwhile


def _is(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
