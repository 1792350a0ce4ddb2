"""A seccomp filter: one process, no other programs, no sockets, no reach to other processes or to files' metadata.

The program keeps threads, memory, time and the files that the mounts or Landlock leave it. What is refused returns an
error, so that a program that tries it fails like any other wrong program.
"""

import ctypes
import os
import struct

# name: (x86_64, aarch64); None where the architecture has no such call.
_NOT_PERMITTED = {
    # other processes: none is made, none is replaced, none is reached; nor can a program have itself killed, which
    # would look like a failure of the machine
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "setpgid": (109, 154), "setsid": (112, 157), "setpriority": (141, 140),
    "timer_create": (222, 107), "setrlimit": (160, 164),
    "sched_setaffinity": (203, 122), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    # network, and sockets that lead out of the process; a socketpair stays, asyncio needs one
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "bind": (49, 200),
    "listen": (50, 201), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # what outlives the process
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219),
    # memory that RLIMIT_AS does not count
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # folders, which could be nested deeper than whoever removes them can follow
    "mkdir": (83, None), "mkdirat": (258, 34),
    # files' metadata, which Landlock does not guard
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "truncate": (76, 45),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # the machine
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "personality": (135, 92), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
# The C library falls back to older calls for these, whose arguments a filter can read; io_uring has no such need.
_MISSING = {"clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)}

_CLONE, _CLONE_THREAD = (56, 220), 0x10000
_PRLIMIT, _PRCTL, _FCNTL, _IOCTL, _SENDTO = (302, 261), (157, 167), (72, 25), (16, 29), (44, 206)
_EXIT, _EXIT_GROUP = (60, 93), (231, 94)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIGNAL_OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file
_TERMINAL_OR_OWNER = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP

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
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, architecture, 1, 0), _step(_RETURN, _KILL)]
    steps.append(_step(_LOAD, _NUMBER))
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _EPERM)]
    for table, answer in ((_NOT_PERMITTED, _EPERM), (_MISSING, _ENOSYS)):
        for numbers in table.values():
            if numbers[column] is not None:
                steps += [_step(_EQUAL, numbers[column], 0, 1), _step(_RETURN, answer)]

    def when(call: tuple[int, int], *checks: bytes) -> None:
        # The loads below replace the call's number, so it is loaded again behind them.
        steps.append(_step(_EQUAL, call[column], 0, len(checks) + 1))
        steps.extend(checks)
        steps.append(_step(_LOAD, _NUMBER))

    refuse = _step(_RETURN, _EPERM)
    when(_CLONE, _argument(0), _step(_ANY_BIT, _CLONE_THREAD, 1, 0), refuse)
    for high in (False, True):  # reading limits stays, its own or others'
        when(_PRLIMIT, _argument(2, high), _step(_EQUAL, 0, 1, 0), refuse)
    for leave in (_EXIT, _EXIT_GROUP):  # from 128 on, bubblewrap reports signals
        when(leave, _argument(0), _step(_AT_LEAST, 128, 0, 1), refuse)
    when(_PRCTL, _argument(0), _step(_EQUAL, _PR_SET_PDEATHSIG, 0, 1), refuse)
    for command in _SIGNAL_OWNERS:
        when(_FCNTL, _argument(1), _step(_EQUAL, command, 0, 1), refuse)
    for request in _TERMINAL_OR_OWNER:
        when(_IOCTL, _argument(1), _step(_EQUAL, request, 0, 1), refuse)
    for high in (False, True):  # sendto with an address; send() passes none
        when(_SENDTO, _argument(4, high), _step(_EQUAL, 0, 1, 0), refuse)
    steps.append(_step(_RETURN, _ALLOW))
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
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(header), zero, zero):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
