"""Writes that are whole or absent, and a disk that takes no more said in one line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from loop_rl.errors import UserError

# What is under a name that begins so is not there yet, or not any more.
INCOMPLETE = ".incomplete_"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FAULTS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ESTALE,
)
# What libraries make of a failed write: safetensors its own exception, torch a RuntimeError, pyarrow an OSError.
_NUMBERED = re.compile(r"(?:os error|[Ee]rrno) (\d+)")
_TORCH = re.compile(r"PytorchStreamWriter|unexpected pos \d+ vs \d+|file write failed")


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a process or machine that dies leaves the old content or the new, never a part."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Another path to write to, whose file then takes the place of `path`; it is removed where that fails."""
    temporary = path.with_name(f"{INCOMPLETE}{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Have a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Have a folder with all that is in it reach the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError, with the place and the cause, where what is done inside fails for want of a writable disk."""
    try:
        yield
    except UserError:  # says already what it is about
        raise
    except Exception as error:
        removed = isinstance(error, FileNotFoundError) and not path.parent.is_dir()
        cause = "its folder was removed" if removed else disk_fault(error)
        if cause is None:
            raise
        place = error.filename if isinstance(error, OSError) and error.filename else path
        raise UserError(
            f"cannot write {place}: {cause}; checkpoints written before are complete: once that is put right, "
            "--resume goes on from the newest"
        ) from error


def full_disk(error: BaseException) -> str | None:
    """The cause in words if the error is a write for which there was no room, whichever library raised it."""
    refused = isinstance(error, OSError) and error.errno not in _NO_ROOM
    return None if refused else disk_fault(error)


def disk_fault(error: BaseException) -> str | None:
    """The cause in words if the error is a write that the disk refused."""
    if isinstance(error, OSError) and error.errno in _FAULTS:
        return os.strerror(error.errno)
    match = _NUMBERED.search(str(error))
    if match and int(match[1]) in _FAULTS:
        return os.strerror(int(match[1]))
    # torch drops the system's number: of all that it writes, only a disk refuses a part.
    return "the disk is full, or a limit on the size of files is reached" if _TORCH.search(str(error)) else None
