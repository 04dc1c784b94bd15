"""Linux calls that Python lacks: thin, typed, raising OSError. Meaning is added by the caller.

Imports on every system; calling one elsewhere raises OSError(ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from ctypes import c_char_p, c_int, c_ulong

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_SYS_ADMIN = 21
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
