"""Confine this process: it can compute, read files and use what it has open, and nothing else.

For copies of a session that are woken to be read: pickling runs code of the user's
(``__reduce__``, ``__getstate__``), which must not act a second time. A seccomp filter refuses
the network, writing to files and folders, new processes and programs, signals to others, locks,
and whatever else lasts or reaches out (docs/native.md has the list). It needs no privilege, cannot
be taken off, and holds for all threads and their children.

Refused calls fail with EPERM. Unknown to the filter, and answered with ENOSYS as an old kernel
would: calls that are newer than it, openat2 and clone3 (their flags lie in memory, where a filter
cannot look; callers fall back to openat and clone), and calls of other ABIs (i386, x32).

A filter cannot see paths either: /dev/null is refused for writing like all files. dill opens it so
when it is imported; in a confined process Python's ``open`` gives memory of its own in its place.

Sources: seccomp(2); linux/filter.h, linux/seccomp.h, linux/audit.h; Linux,
Documentation/userspace-api/seccomp_filter.rst; arch/x86/entry/syscalls/syscall_64.tbl;
scripts/syscall.tbl (aarch64).
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

OWN_PID = 0x7FFFFFFF
"""Stands for the process's own id in a filter that is made before the process; no id is as high."""

_X86_64, _AARCH64 = 0, 1
_MACHINES = {"x86_64": _X86_64, "aarch64": _AARCH64}
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_NEWEST = 462
"""mseal (Linux 6.10): the last call that was looked at. Numbers from 424 on are the same on all
machines, and those of x32 are higher by 2**30."""

# What to refuse: (x86-64, aarch64). A machine without a call has -1.
_REFUSED = {
    "the network": {
        "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
        "accept": (43, 202), "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    },
    "writing to files": {
        "creat": (85, -1), "open_by_handle_at": (304, 265), "truncate": (76, 45), "flock": (73, 32),
    },
    "names of files": {
        "unlink": (87, -1), "unlinkat": (263, 35), "rmdir": (84, -1), "rename": (82, -1),
        "renameat": (264, 38), "renameat2": (316, 276), "link": (86, -1), "linkat": (265, 37),
        "symlink": (88, -1), "symlinkat": (266, 36), "mkdir": (83, -1), "mkdirat": (258, 34),
        "mknod": (133, -1), "mknodat": (259, 33),
    },
    "attributes of files": {
        "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
        "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
        "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
        "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
        "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    },
    "mounts and namespaces": {
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
        "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
        "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
        "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
        "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
        "quotactl_fd": (443, 443), "acct": (163, 89),
    },
    "other processes": {
        "tkill": (200, 130), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
        "ptrace": (101, 117), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
        "process_mrelease": (448, 448),
    },
    "new programs and processes": {
        "execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1),
    },
    "System V and POSIX objects": {
        "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
        "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186),
        "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
        "mq_unlink": (241, 181),
    },
    "ways around a filter": {
        "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427), "io_setup": (206, 0), "userfaultfd": (323, 282),
    },
    "the machine": {
        "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219),
        "add_key": (248, 217), "request_key": (249, 218), "fanotify_init": (300, 262),
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
        "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
        "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
        "syslog": (103, 116), "vhangup": (153, 58), "uselib": (134, -1), "iopl": (172, -1),
        "ioperm": (173, -1),
    },
}  # fmt: skip

_UNKNOWN = {"openat2": (437, 437), "clone3": (435, 435)}

# Refused by their arguments
_OPEN, _OPENAT, _SENDTO, _CLONE = (2, -1), (257, 56), (44, 206), (56, 220)
_IOCTL, _FCNTL, _PRLIMIT64 = (16, 29), (72, 25), (302, 261)
_TO_A_PROCESS = ((62, 129), (234, 131), (129, 138), (297, 240))
"""kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo: the first argument is a process id."""

_WRITES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the bit of O_TMPFILE, the same on both machines."""

_CLONE_THREAD = 0x00010000
_LOCKS = (6, 7, 37, 38, 1024, 1026)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY."""

_HARMLESS_IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

# classic BPF, linux/bpf_common.h
_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_GREATER, _IF_BITS = 0x15, 0x25, 0x45
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_Instruction = tuple[int, int, int, int]

_PR_SET_NO_NEW_PRIVS = 38
_SYS_SECCOMP = (317, 277)
_SET_MODE_FILTER, _TSYNC = 1, 1


def _refuse(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _load_argument(index: int) -> _Instruction:
    # the low half, on a little-endian machine: all that is looked at are ints
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _when(number: int, then: Sequence[_Instruction]) -> list[_Instruction]:
    """Do that for one call; it must end in a return. A call that is not there needs nothing."""
    return [] if number < 0 else [(_IF_EQUAL, 0, len(then), number), *then]


def _if_bits(argument: int, bits: int, found: int, else_: int) -> list[_Instruction]:
    return [
        _load_argument(argument),
        (_IF_BITS, 0, 1, bits),
        (_RETURN, 0, 0, found),
        (_RETURN, 0, 0, else_),
    ]


def _if_one_of(argument: int, values: Sequence[int], found: int, else_: int) -> list[_Instruction]:
    tests = [
        (_IF_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)
    ]  # each jumps over the rest and the return behind them
    return [_load_argument(argument), *tests, (_RETURN, 0, 0, else_), (_RETURN, 0, 0, found)]


def program(machine: str, pid: int = OWN_PID) -> bytes:
    """Return the filter, an array of struct sock_filter, for a process with that id.

    Raises KeyError for a machine that is not known.
    """
    at = _MACHINES[machine]
    denied, unknown = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCH[at]),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_GREATER, 0, 1, _NEWEST),
        _refuse(errno.ENOSYS),
    ]
    code += _when(_OPENAT[at], _if_bits(2, _WRITES, denied, _ALLOW))
    code += _when(_OPEN[at], _if_bits(1, _WRITES, denied, _ALLOW))
    code += _when(_SENDTO[at], _if_one_of(5, [0], _ALLOW, denied))  # the size of an address
    code += _when(_CLONE[at], _if_bits(0, _CLONE_THREAD, _ALLOW, denied))
    code += _when(_IOCTL[at], _if_one_of(1, _HARMLESS_IOCTLS, _ALLOW, denied))
    code += _when(_FCNTL[at], _if_one_of(1, _LOCKS, denied, _ALLOW))
    code += _when(_PRLIMIT64[at], _if_one_of(0, [0, pid], _ALLOW, denied))
    for call in _TO_A_PROCESS:
        code += _when(call[at], _if_one_of(0, [pid], _ALLOW, denied))
    for call in _UNKNOWN.values():
        code += _when(call[at], [(_RETURN, 0, 0, unknown)])
    for calls in _REFUSED.values():
        for call in calls.values():
            code += _when(call[at], [(_RETURN, 0, 0, denied)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """Confine this process, all of its threads, for good.

    Raises OSError where that is not possible; then nothing has changed, and nothing of the user's
    may run.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOTSUP, f"No filter of system calls is known for {machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(machine, os.getpid())
    what = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        raise _error("Privileges cannot be given up")
    call = ctypes.c_long(_SYS_SECCOMP[_MACHINES[machine]])
    result = libc.syscall(
        call, ctypes.c_ulong(_SET_MODE_FILTER), ctypes.c_ulong(_TSYNC), ctypes.byref(what)
    )
    if result > 0:
        raise OSError(errno.EBUSY, f"Thread {result} has a filter of its own: seccomp refuses")
    if result:
        raise _error("seccomp filters are not available (CONFIG_SECCOMP_FILTER)")
    builtins.open, os.open = _instead_of_null(builtins.open), _instead_of_null(os.open)


def _instead_of_null(opens: Callable[..., Any]) -> Any:
    """``open``, or ``os.open``, with memory that ends with the file in place of /dev/null."""

    def open_other(path: Any, *arguments: Any, **options: Any) -> Any:
        if type(path) is not str or path != os.devnull:
            return opens(path, *arguments, **options)
        fd = os.memfd_create("null")
        return fd if opens is _os_open else opens(fd, *arguments, **options)

    return open_other


_os_open = os.open


def _error(text: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{text}: {os.strerror(number)}")
