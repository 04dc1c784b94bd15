"""Linux calls that Python's standard library lacks, as the workspace engine needs them.

Thin wrappers: each raises OSError with the path it was given; callers add meaning.
The module imports anywhere; its functions work on Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

LINUX: Final = sys.platform.startswith("linux")

O_PATH: Final[int] = getattr(os, "O_PATH", 0)
O_NOATIME: Final[int] = getattr(os, "O_NOATIME", 0)
O_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
O_DIRECTORY: Final[int] = getattr(os, "O_DIRECTORY", 0)
O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_STATX_BTIME: Final = 0x800
_STATX_ATTR_IMMUTABLE: Final = 0x10
_STATX_ATTR_APPEND: Final = 0x20
_SYS_RENAMEAT2: Final = {"x86_64": 316, "aarch64": 276}
_SYS_STATX: Final = {"x86_64": 332, "aarch64": 291}

_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None
_machine = platform.machine()


def _call(name: str, *args: object) -> int:
    """Call a libc function that reports failure by -1 and errno; raise OSError."""
    if _libc is None:
        raise OSError(errno.ENOSYS, f"{name} needs Linux")
    result: int = getattr(_libc, name)(*args)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _syscall(table: dict[str, int], *args: object) -> int:
    number = table.get(_machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"unknown architecture {_machine}")
    return _call("syscall", ctypes.c_long(number), *args)


def rename_at(src_fd: int, src: bytes, dst_fd: int, dst: bytes, flags: int = 0) -> None:
    """renameat2(2): no part of either name is followed when both are single components.

    Raises OSError; EINVAL where the filesystem knows no such flag.
    """
    if flags == 0:
        os.rename(src, dst, src_dir_fd=src_fd, dst_dir_fd=dst_fd)
        return
    try:
        _syscall(
            _SYS_RENAMEAT2,
            ctypes.c_int(src_fd),
            ctypes.c_char_p(src),
            ctypes.c_int(dst_fd),
            ctypes.c_char_p(dst),
            ctypes.c_uint(flags),
        )
    except OSError as cause:
        raise OSError(cause.errno, cause.strerror, src, None, dst) from None


def filesystem_type(fd: int) -> int:
    """f_type of fstatfs(2), a magic number; 0 where it cannot be had."""
    if _libc is None:
        return 0
    buffer = ctypes.create_string_buffer(256)
    try:
        _call("fstatfs", ctypes.c_int(fd), buffer)
    except OSError:
        return 0
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF


def protected_attributes(dir_fd: int, name: bytes) -> str:
    """Name the inode flags that forbid changes: "immutable", "append-only" or "".

    statx(2) tells them without opening the file. "" where the kernel or the filesystem
    cannot tell. Raises OSError if the entry is not there.
    """
    buffer = ctypes.create_string_buffer(256)
    try:
        _syscall(
            _SYS_STATX,
            ctypes.c_int(dir_fd),
            ctypes.c_char_p(name),
            ctypes.c_int(_AT_SYMLINK_NOFOLLOW),
            ctypes.c_uint(0),
            buffer,
        )
    except OSError as cause:
        if cause.errno in (errno.ENOSYS, errno.EPERM):
            return ""
        raise
    attributes = struct.unpack_from("=Q", buffer.raw, 8)[0]
    if attributes & _STATX_ATTR_IMMUTABLE:
        return "immutable"
    return "append-only" if attributes & _STATX_ATTR_APPEND else ""


def birth_time_ns(path: bytes) -> int | None:
    """When a file was made (nanoseconds since the epoch); None where that is not known."""
    buffer = ctypes.create_string_buffer(256)
    try:
        _syscall(
            _SYS_STATX,
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(path),
            ctypes.c_int(_AT_SYMLINK_NOFOLLOW),
            ctypes.c_uint(_STATX_BTIME),
            buffer,
        )
    except OSError:
        return None
    (mask,) = struct.unpack_from("=I", buffer.raw, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer.raw, 80)
    return int(seconds) * 10**9 + int(nanoseconds) if mask & _STATX_BTIME else None


def inotify_init() -> int:
    """inotify_init1(2), non-blocking and close-on-exec."""
    return _call("inotify_init1", ctypes.c_int(os.O_NONBLOCK | O_CLOEXEC))


def inotify_add_watch(fd: int, path: bytes, mask: int) -> int:
    """inotify_add_watch(2): the watch descriptor. ENOSPC: the user's watches are used up."""
    return _call(
        "inotify_add_watch", ctypes.c_int(fd), ctypes.c_char_p(path), ctypes.c_uint32(mask)
    )


def inotify_rm_watch(fd: int, watch: int) -> None:
    """inotify_rm_watch(2)."""
    _call("inotify_rm_watch", ctypes.c_int(fd), ctypes.c_int(watch))
