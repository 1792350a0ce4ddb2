"""The filter: its numbers against the system's own lists, its jumps, and what it refuses in a running process."""

import errno
import marshal
import os
import re
import struct
from pathlib import Path

import pytest

from rewards.sandbox.inside import seccomp
from rewards.sandbox.wire import UNBOUNDED, decode
from rewards.sandbox.worker import Job, Limits
from tests.rewards.mbpp_squares import MODES, make_pool

LISTS = {0: "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 1: "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("column", LISTS)
def test_numbers_are_the_systems(column):
    if not Path(LISTS[column]).exists():
        pytest.skip("the system's headers are not installed")
    text = Path(LISTS[column]).read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    named = {"clone": seccomp._CLONE, "prlimit64": seccomp._PRLIMIT, "prctl": seccomp._PRCTL, "fcntl": seccomp._FCNTL}
    named |= {"ioctl": seccomp._IOCTL, "sendto": seccomp._SENDTO, "exit": seccomp._EXIT}
    tables = {**seccomp._ALLOWED, **named, "exit_group": seccomp._EXIT_GROUP}
    known = {name: row[column] for name, row in tables.items() if name in numbers or row[column] is None}
    assert known == {name: numbers.get(name) for name in known}
    assert len(tables) - len(known) <= 5  # newer than the headers


def test_an_unknown_architecture_is_refused():
    with pytest.raises(OSError, match="no list of system calls for riscv64"):
        seccomp.filter_program("riscv64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_jumps_stay_inside(machine):
    program = seccomp.filter_program(machine)
    steps = [(program[at], program[at + 2], program[at + 3]) for at in range(0, len(program), 8)]
    assert len(steps) < 4096  # the kernel's bound
    for place, (code, then, otherwise) in enumerate(steps):
        if code in (0x15, 0x35, 0x45):
            assert place + 1 + max(then, otherwise) < len(steps)


class Filter:
    """The filter, stepped through by hand: an interpreter of the few instructions it has."""

    def __init__(self, machine: str):
        self.steps = [*struct.iter_unpack("=HBBI", seccomp.filter_program(machine))]
        self.architecture = seccomp._ARCHITECTURES[machine][1]

    def __call__(self, number: int, *arguments: int, architecture: int | None = None) -> int:
        words = {0: number, 4: self.architecture if architecture is None else architecture}
        for index in range(6):
            value = arguments[index] if index < len(arguments) else 0
            words |= {16 + 8 * index: value & 0xFFFFFFFF, 20 + 8 * index: value >> 32}
        at = loaded = 0
        while True:
            code, then, otherwise, value = self.steps[at]
            at += 1
            if code == 0x06:
                return value
            if code == 0x20:
                loaded = words[value]
            else:
                met = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
                at += then if met else otherwise


ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_not_listed_is_refused(machine):
    column, decide = seccomp._ARCHITECTURES[machine][0], Filter(machine)
    allowed = {row[column] for row in seccomp._ALLOWED.values()} - {None}
    by_arguments = {call[column] for call in (seccomp._CLONE, seccomp._PRLIMIT, seccomp._PRCTL, seccomp._FCNTL)}
    by_arguments |= {call[column] for call in (seccomp._IOCTL, seccomp._SENDTO, seccomp._EXIT, seccomp._EXIT_GROUP)}
    for number in set(range(600)) - by_arguments:
        expected = ALLOW if number in allowed else EPERM if number < 424 else ENOSYS
        assert decide(number) == expected, number
    assert decide(0x40000001 if machine == "x86_64" else 9999) == (EPERM if machine == "x86_64" else ENOSYS)
    assert decide(1, architecture=0x40000003) == KILL


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("_CLONE", (0x3D0F00,), ALLOW),  # pthread_create's flags
        ("_CLONE", (0x11,), EPERM),  # fork's
        ("_CLONE", (0x4111,), EPERM),  # vfork's
        ("_CLONE", (0x3D0F00 | 0x20000,), EPERM),
        ("_CLONE", (0x3D0F00 | 0x10000000,), EPERM),
        ("_EXIT_GROUP", (0,), ALLOW),
        ("_EXIT_GROUP", (127,), ALLOW),
        ("_EXIT_GROUP", (137,), EPERM),
        ("_EXIT", (137,), EPERM),
        ("_PRLIMIT", (0, 7, 0, 1 << 40), ALLOW),
        ("_PRLIMIT", (0, 7, 1 << 40, 0), EPERM),
        ("_PRLIMIT", (0, 7, 8, 0), EPERM),
        ("_PRLIMIT", (1, 7, 0, 0), EPERM),
        ("_SENDTO", (3, 1 << 40, 1, 0, 0, 0), ALLOW),
        ("_SENDTO", (3, 1 << 40, 1, 0, 1 << 40, 16), EPERM),
        ("_PRCTL", (15,), ALLOW),
        ("_PRCTL", (1, 0), EPERM),
        ("_PRCTL", (4, 1), EPERM),
        ("_PRCTL", (0x59616D61,), EPERM),
        ("_FCNTL", (3, 1030), ALLOW),
        ("_FCNTL", (3, 8, 1), EPERM),
        ("_FCNTL", (3, 10, 9), EPERM),
        ("_FCNTL", (3, 15), EPERM),
        ("_FCNTL", (3, 1026), EPERM),
        ("_IOCTL", (0, 0x5401), ALLOW),
        ("_IOCTL", (0, 0x5412), EPERM),
        ("_IOCTL", (0, 0x541C), EPERM),
        ("_IOCTL", (0, 0x8901), EPERM),
    ],
)
def test_calls_that_are_told_by_their_arguments(machine, call, arguments, answer):
    assert Filter(machine)(getattr(seccomp, call)[seccomp._ARCHITECTURES[machine][0]], *arguments) == answer


# what an allow-list closes, by the numbers of x86_64 and aarch64
CLOSED = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "execve": (59, 221), "execveat": (322, 281), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "unshare": (272, 97), "setns": (308, 268), "perf_event_open": (298, 241),
    "mount": (165, 40), "open_tree": (428, 428), "fsopen": (430, 430), "move_mount": (429, 429),
    "landlock_create_ruleset": (444, 444), "seccomp": (317, 277), "clone3": (435, 435), "openat2": (437, 437),
    "fanotify_init": (300, 262), "inotify_init1": (294, 26), "signalfd4": (289, 74), "timerfd_create": (283, 85),
    "timer_create": (222, 107), "mq_open": (240, 180), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186),
    "splice": (275, 76), "tee": (276, 77), "vmsplice": (278, 75), "process_madvise": (440, 440), "kcmp": (312, 272),
    "personality": (135, 92), "setuid": (105, 146), "setgroups": (116, 159), "capset": (126, 91), "capget": (125, 90),
    "chdir": (80, 49), "fchdir": (81, 50), "chroot": (161, 51), "mkdirat": (258, 34), "mknodat": (259, 33),
    "symlinkat": (266, 36), "linkat": (265, 37), "readlinkat": (267, 78), "fchmodat": (268, 53), "fchownat": (260, 54),
    "utimensat": (280, 88), "setxattr": (188, 5), "truncate": (76, 45), "umask": (95, 166), "sync": (162, 81),
    "syslog": (103, 116), "socket": (41, 198), "connect": (42, 203), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "kill": (62, 129), "tgkill": (234, 131), "wait4": (61, 260), "setpgid": (109, 154), "setsid": (112, 157),
    "mlockall": (151, 230), "mbind": (237, 235), "pkey_alloc": (330, 289), "remap_file_pages": (216, 234),
    "futex_waitv": (449, 449), "cachestat": (451, 451), "a call of the year 2040": (700, 700),
}  # fmt: skip
PROBE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def f(calls):
    found = {}
    for name, number in calls:
        ctypes.set_errno(0)
        found[name] = libc.syscall(number, *[ctypes.c_long(0)] * 6), ctypes.get_errno()
    return found
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_program_is_refused_what_it_does_not_need(mode, tmp_path):
    machine = os.uname().machine
    if machine not in seccomp._ARCHITECTURES:
        pytest.skip(f"no list of system calls for {machine}")
    column = seccomp._ARCHITECTURES[machine][0]
    assert not {row[column] for row in CLOSED.values()} & {row[column] for row in seccomp._ALLOWED.values()}
    outputs: list[bytes] = []
    pool = make_pool(mode, tmp_path, workers=1)
    try:
        calls = marshal.dumps(([(name, row[column]) for name, row in CLOSED.items()],), 2)

        def see(index: int, kind: bytes, payload: bytes) -> bool:
            outputs.append(payload)
            return True

        ending = pool.submit(lambda worker: worker.run(Job(PROBE, "f", [calls]), Limits(), see)).result()
    finally:
        pool.close()
    assert ending.kind == "done"
    found = decode(outputs[0], UNBOUNDED)[0]
    expected = {name: (-1, errno.EPERM if row[column] < 424 else errno.ENOSYS) for name, row in CLOSED.items()}
    assert found == expected
