"""Copies that share their blocks with the original, and writing a filesystem back.

Thin wrappers: they raise OSError where the filesystem or the system cannot.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Final

try:
    import fcntl
except ImportError:  # not on Windows, where the engines do not run either
    fcntl = None  # type: ignore[assignment]

# ioctl_ficlone(2); the generic ioctl encoding, the same on x86-64 and aarch64.
_FICLONE: Final = 0x40049409
_FICLONERANGE: Final = 0x4020940D


def clone_file(dst_fd: int, src_fd: int) -> None:
    """FICLONE: share all blocks of src with the empty file dst. Raises OSError if refused."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "reflinks need Linux")
    fcntl.ioctl(dst_fd, _FICLONE, src_fd)


def clone_range(dst_fd: int, dst_offset: int, src_fd: int, src_offset: int, length: int) -> None:
    """FICLONERANGE. Offsets are block aligned; length too, except at the end of src."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "reflinks need Linux")
    fcntl.ioctl(dst_fd, _FICLONERANGE, struct.pack("=qQQQ", src_fd, src_offset, length, dst_offset))


def sync_filesystem(fd: int) -> None:
    """syncfs(2): write back the filesystem that holds fd. Raises OSError on a write error."""
    if not sys.platform.startswith("linux"):
        os.fsync(fd)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(ctypes.c_int(fd)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
