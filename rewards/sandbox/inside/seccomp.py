"""A seccomp filter: the system calls that a program computing in Python needs, and no others.

A program keeps its memory, time, threads, and the files that the mounts or Landlock leave it. It doesn't get other
processes and programs, sockets that lead out of it, signals, folders, links, files' metadata, limits, namespaces, and
whatever the kernel will be given after this was written. A refused call returns an error, so that a program that tries
it fails like any other wrong program: EPERM, or ENOSYS for calls from Linux 5.1 on, in whose place the C library then
uses older ones.
"""

import ctypes
import os
import struct

# name: (x86_64, aarch64); None where the architecture has no such call.
_ALLOWED = {
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "membarrier": (324, 283),
    # threads, which end with the process
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "gettid": (186, 178),
    "set_tid_address": (218, 96), "sched_yield": (24, 124), "getcpu": (309, 168), "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "restart_syscall": (219, 128),
    # how it takes signals; it sends none, but for timers of its own that the process ends by at worst
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "pause": (34, None),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102),
    # time, and what it has used
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    # open files
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69), "write": (1, 64), "writev": (20, 66),
    "pwrite64": (18, 68), "pwritev": (296, 70), "lseek": (8, 62), "close": (3, 57), "close_range": (436, 436),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "ftruncate": (77, 46), "fsync": (74, 82),
    "fdatasync": (75, 83), "flock": (73, 32), "sendfile": (40, 71),
    # files by name; links and folders are not made, and nothing is asked of /proc's links
    "open": (2, None), "openat": (257, 56), "stat": (4, None), "lstat": (6, None), "fstat": (5, 80),
    "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17),
    "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    # waiting, and pipes within the process; asyncio needs a socketpair
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "pipe": (22, None), "pipe2": (293, 59), "socketpair": (53, 199), "recvfrom": (45, 207),
    "shutdown": (48, 210), "getsockopt": (55, 209), "setsockopt": (54, 208), "getsockname": (51, 204),
    "getpeername": (52, 205),
    # who and where it is
    "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278), "getrlimit": (97, 163),
}  # fmt: skip
# These by their arguments, which a filter can read where they are no pointers.
_CLONE, _PRLIMIT, _PRCTL, _FCNTL, _IOCTL, _SENDTO = (56, 220), (302, 261), (157, 167), (72, 25), (16, 29), (44, 206)
_EXIT, _EXIT_GROUP = (60, 93), (231, 94)
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000  # the second: namespaces
_NAMES_OF_THREADS = (15, 16)  # PR_SET_NAME, PR_GET_NAME
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, locks, F_DUPFD_CLOEXEC, sizes of pipes; no signals by way of a file
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032)
# TCGETS, TCGETS2 (is it a terminal?), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL_REQUESTS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)

_FIRST_UNKNOWN = 424  # Linux 5.1's first; the numbers from here on are the same everywhere
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH_*
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # calls of the x32 ABI start here


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _argument(index: int, high: bool = False) -> bytes:
    return _step(_LOAD, _ARGUMENTS + 8 * index + 4 * high)  # little-endian: the high half comes second


def filter_program(machine: str) -> bytes:
    """The filter as BPF instructions for `os.uname().machine`; each test jumps over the return that follows it.

    Raises:
        OSError: an architecture whose system calls are not listed here.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(f"no list of system calls for {machine}")
    column, architecture = _ARCHITECTURES[machine]
    refuse, allow = _step(_RETURN, _EPERM), _step(_RETURN, _ALLOW)
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL)]
    steps.append(_step(_LOAD, _NUMBER))
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32, 0, 1), refuse]
    for numbers in _ALLOWED.values():
        if numbers[column] is not None:
            steps += [_step(_EQUAL, numbers[column], 0, 1), allow]

    def when(call: tuple[int, int], *checks: bytes, last: bytes) -> None:
        steps.extend((_step(_EQUAL, call[column], 0, len(checks) + 1), *checks, last))

    def one_of(call: tuple[int, int], index: int, values: tuple[int, ...]) -> None:
        tests = [step for value in values for step in (_step(_EQUAL, value, 0, 1), allow)]
        when(call, _argument(index), *tests, last=refuse)

    a_thread = (_step(_ANY_BIT, _CLONE_THREAD, 1, 0), refuse, _step(_ANY_BIT, _CLONE_NEW, 0, 1), refuse)
    when(_CLONE, _argument(0), *a_thread, last=allow)
    for leave in (_EXIT, _EXIT_GROUP):  # from 128 on, bubblewrap reports signals
        when(leave, _argument(0), _step(_AT_LEAST, 128, 0, 1), refuse, last=allow)

    def zero(*halves: tuple[int, bool]) -> list[bytes]:
        return [step for half in halves for step in (_argument(*half), _step(_EQUAL, 0, 1, 0), refuse)]

    when(_PRLIMIT, *zero((0, False), (2, False), (2, True)), last=allow)  # reads its own limits, sets none
    when(_SENDTO, *zero((4, False), (4, True)), last=allow)  # without an address, as send() does
    one_of(_PRCTL, 0, _NAMES_OF_THREADS)
    one_of(_FCNTL, 1, _FCNTL_COMMANDS)
    one_of(_IOCTL, 1, _IOCTL_REQUESTS)
    steps += [_step(_AT_LEAST, _FIRST_UNKNOWN, 0, 1), _step(_RETURN, _ENOSYS), refuse]
    return b"".join(steps)


def restrict(libc: ctypes.CDLL) -> None:
    """Put the filter on this thread and all that it starts, for good.

    Raises:
        OSError: the kernel refuses, or the architecture is unknown.
    """
    program = filter_program(os.uname().machine)
    code = ctypes.create_string_buffer(program, len(program))

    class Header(ctypes.Structure):  # struct sock_fprog
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    header = Header(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    zero = ctypes.c_ulong(0)
    if libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(header), zero, zero):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
