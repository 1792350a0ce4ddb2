"""Runs one program on its inputs. Started as a script; told what to do on standard input, answers on standard output.

In:   argument 1, by marshal in hexadecimal: (readable paths or None, writable paths, folder of packages);
      standard input, to its end, by marshal: (code, entry point, encoded inputs, CPU seconds, bytes of memory).
Out:  frames of one byte of kind, four of length (little-endian) and a payload.
      P  ready for its program      B  begins to run the program
      V, D  an output, and its digest                    X  the call raised (class name)
      F  the program itself raised (class name)          M  it defines no entry point
      E  all inputs ran: (CPU seconds, peak bytes), by marshal

Nothing here is trusted once a program runs: it can write any frame, and gains nothing from it, because the process
holds inputs and no expected output. Every program pays for every import here: json or typing would double its cost.
"""

import ctypes
import marshal
import os
import resource
import sys
from types import ModuleType

import encode
import landlock
import seccomp

_LONGEST_FILE = 16 << 20  # bytes
_OPEN_FILES = 64


def _channels() -> tuple[int, int]:
    """The two pipes, moved away from standard input and output, which then lead nowhere."""
    job, answers = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    if nowhere > 2:
        os.close(nowhere)
    return job, answers


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit for good, never above the hard limit that is already there."""
    before = resource.getrlimit(which)[1]
    limits = (soft, soft if hard is None else hard)
    resource.setrlimit(which, limits if before == resource.RLIM_INFINITY else tuple(min(n, before) for n in limits))


def _give_up(libc: ctypes.CDLL, readable: list | None, writable: list) -> None:
    """Give up files, root's powers, and the means to outlive the thread that waits for the answers."""
    libc.prctl(1, ctypes.c_ulong(9))  # PR_SET_PDEATHSIG, SIGKILL
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, nothing)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, _LONGEST_FILE)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    if readable is not None:
        landlock.restrict(libc, readable, writable)


def _name(error: BaseException) -> bytes:
    BaseException.with_traceback(error, None)  # lets go of the frames, and of the memory that they may have filled
    return type(error).__name__[:60].encode("ascii", "replace")


def main() -> None:
    readable, writable, packages = marshal.loads(bytes.fromhex(sys.argv[1]))
    job, answers = _channels()
    write, loads, leave = os.write, marshal.loads, os._exit

    def send(kind: bytes, payload: bytes = b"") -> None:
        frame = kind + len(payload).to_bytes(4, "little") + payload
        while frame:
            frame = frame[write(answers, frame) :]

    libc = ctypes.CDLL(None, use_errno=True)
    _give_up(libc, readable, writable)
    send(b"P")
    parts = []
    while part := os.read(job, 1 << 20):
        parts.append(part)
    os.close(job)
    if not parts:
        leave(0)  # whoever started this needs it no more
    code, entry_point, inputs, seconds, memory = loads(b"".join(parts))
    _limit(
        resource.RLIMIT_CPU, seconds, seconds + 2
    )  # SIGXCPU at the first, which can be ignored, SIGKILL at the second
    _limit(resource.RLIMIT_AS, memory)
    seccomp.restrict(libc)
    sys.path[0] = packages  # was this script's folder
    sys.argv[1:] = []
    module = ModuleType("program")
    sys.modules["program"] = module
    send(b"B")
    try:
        exec(compile(code, "program", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        send(b"F", _name(error))
        leave(0)
    if entry_point not in module.__dict__:
        send(b"M")
        leave(0)
    function = module.__dict__[entry_point]
    for arguments in inputs:
        try:
            kind, payload = encode.encode(function(*loads(arguments)))
        except BaseException as error:
            kind, payload = b"X", _name(error)
        send(kind, payload)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    send(b"E", marshal.dumps((usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10), 2))
    leave(0)  # without waiting for the program's threads


main()
