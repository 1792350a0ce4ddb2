"""The filter's system calls, against the system's own list."""

import re
from pathlib import Path

import pytest

from rewards.sandbox.inside import seccomp

LISTS = {0: "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 1: "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("column", LISTS)
def test_numbers_are_the_systems(column):
    if not Path(LISTS[column]).exists():
        pytest.skip("the system's headers are not installed")
    text = Path(LISTS[column]).read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    named = {"clone": seccomp._CLONE, "prlimit64": seccomp._PRLIMIT, "prctl": seccomp._PRCTL, "fcntl": seccomp._FCNTL}
    named |= {
        "ioctl": seccomp._IOCTL,
        "sendto": seccomp._SENDTO,
        "exit": seccomp._EXIT,
        "exit_group": seccomp._EXIT_GROUP,
    }
    tables = {**seccomp._NOT_PERMITTED, **seccomp._MISSING, **named}
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
