"""Landlock: the files that a program can read and write, where no bubblewrap gives it a root of its own."""

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _LIST, _REFER, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 13, 1 << 14, 1 << 15
_VERSION_1 = (1 << 13) - 1  # the rights every version knows: reading, writing, making and removing
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL


def version(libc: ctypes.CDLL) -> int:
    """The kernel's Landlock ABI; 0: none."""
    return max(0, libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def restrict(libc: ctypes.CDLL, readable: list[str], writable: list[str]) -> int:
    """Leave this thread and all that it starts only these folders and files; returns the ABI, 0 where there is none.

    Raises:
        OSError: the kernel has Landlock and refuses.
    """
    abi = version(libc)
    if not abi:
        return 0
    handled = _VERSION_1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL if abi >= 5 else 0)
    # handled_access_fs; from 4 on TCP's bind and connect; from 6 on abstract sockets' and signals' scope
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    read_only = _EXECUTE | _READ | _LIST
    for paths, rights in ((readable, read_only), (writable, handled & ~_EXECUTE)):
        for path in paths:
            try:
                beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not every system has each of them
            allowed = rights if os.path.isdir(path) else rights & _OF_FILES
            rule = struct.pack("=Qi", allowed & handled, beneath)
            if libc.syscall(_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)):
                raise OSError(ctypes.get_errno(), "landlock_add_rule")
            os.close(beneath)
    if libc.prctl(38, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)
    return abi
