"""Linux calls that Python lacks: thin, typed, raising OSError. Meaning is added by the caller.

Imports on every system; calling one elsewhere raises OSError(ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from ctypes import c_char_p, c_int, c_ulong

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19

MNT_DETACH = 2
AT_RECURSIVE = 0x8000
AT_EMPTY_PATH = 0x1000
MOUNT_ATTR_RDONLY = 1
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 4

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_NET_BIND_SERVICE = 10
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13
CAP_IPC_LOCK = 14
CAP_IPC_OWNER = 15
CAP_SYS_CHROOT = 18
CAP_SYS_ADMIN = 21
CAP_SYS_NICE = 23
CAP_SYS_RESOURCE = 24
CAP_MKNOD = 27
CAP_AUDIT_WRITE = 29
CAP_SETFCAP = 31
CAP_CHECKPOINT_RESTORE = 40

_CAPABILITY_VERSION_3 = 0x20080522
_libc: ctypes.CDLL | None = None


def _call(name: str, *args: object) -> int:
    global _libc
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"{name} exists on Linux only")
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    result: int = getattr(_libc, name)(*args)
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{name}: {os.strerror(err)}")
    return result


def unshare(flags: int) -> None:
    """unshare(2)."""
    _call("unshare", c_int(flags))


def mount(source: str, target: str, fstype: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2). Needs CAP_SYS_ADMIN in the user namespace that owns the mount namespace."""
    try:
        _call(
            "mount",
            c_char_p(os.fsencode(source)),
            c_char_p(os.fsencode(target)),
            c_char_p(fstype.encode() if fstype else None),
            c_ulong(flags),
            c_char_p(os.fsencode(data) if data else None),
        )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), source, None, target) from None


def umount(target: str, flags: int = 0) -> None:
    """umount2(2). Without MNT_DETACH a mount that is in use stays, with EBUSY."""
    try:
        _call("umount2", c_char_p(os.fsencode(target)), c_int(flags))
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), target) from None


# The numbers of system calls that came after 2019 are the same on every architecture.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442


def open_tree(path: str, flags: int, *, directory: int = -100) -> int:
    """open_tree(2): return a descriptor of a mount, with OPEN_TREE_CLONE of a copy of it."""
    try:
        return _call(
            "syscall",
            ctypes.c_long(_SYS_OPEN_TREE),
            ctypes.c_long(directory),
            c_char_p(os.fsencode(path)),
            ctypes.c_long(flags),
        )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def move_mount(mount_fd: int, directory: int, path: str) -> None:
    """move_mount(2): attach the mount that a descriptor is of at path below another one."""
    try:
        _call(
            "syscall",
            ctypes.c_long(_SYS_MOVE_MOUNT),
            ctypes.c_long(mount_fd),
            c_char_p(b""),
            ctypes.c_long(directory),
            c_char_p(os.fsencode(path)),
            ctypes.c_long(MOVE_MOUNT_F_EMPTY_PATH),
        )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


def make_read_only(mount_fd: int) -> None:
    """mount_setattr(2): nothing is written through this mount any more. Linux 5.12."""
    attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    _call(
        "syscall",
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(mount_fd),
        c_char_p(b""),
        ctypes.c_long(AT_EMPTY_PATH),
        c_char_p(attributes),
        ctypes.c_long(len(attributes)),
    )


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    number = 155 if os.uname().machine == "x86_64" else 41
    _call("syscall", ctypes.c_long(number), c_char_p(os.fsencode(new)), c_char_p(os.fsencode(old)))


def prctl(option: int, *args: int) -> int:
    """prctl(2)."""
    padded = [*args, 0, 0, 0, 0][:4]
    return _call("prctl", c_int(option), *(c_ulong(a) for a in padded))


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def has_capability(capability: int) -> bool:
    """Say whether the calling thread has it in effect, in its own user namespace. capget(2)."""
    data = _capget()
    return bool(data[capability // 32].effective >> (capability % 32) & 1)


def _capget() -> ctypes.Array[_CapData]:
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    _call("capget", ctypes.byref(header), data)
    return data


def raise_ambient(capability: int) -> None:
    """Keep a capability over execve for an ordinary uid. capabilities(7), "ambient set"."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = _capget()
    data[capability // 32].inheritable |= 1 << (capability % 32)
    _call("capset", ctypes.byref(header), data)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def clear_ambient() -> None:
    """Let programs that this process executes have none of its capabilities."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def limit_capabilities(keep: frozenset[int]) -> None:
    """Give up every other capability for good, for this process and whatever it executes."""
    for capability in range(64):
        if capability not in keep:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # the kernel's last one is passed
                break
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = _capget()
    for word in range(2):
        mask = sum(1 << (c % 32) for c in keep if c // 32 == word)
        data[word].effective &= mask
        data[word].permitted &= mask
        data[word].inheritable &= mask
    _call("capset", ctypes.byref(header), data)


def punch_hole(fd: int, offset: int, size: int) -> None:
    """Give back what a file holds in these bytes; it reads as zeros there. Raises OSError.

    fallocate(2), FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE.
    """
    _call("fallocate64", fd, 3, ctypes.c_int64(offset), ctypes.c_int64(size))


def boot_id() -> str:
    """What tells one run of the machine from another; nothing where that is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
