"""Guard pages within memory (MADV_GUARD_INSTALL, Linux 6.13) while DMTCP writes it.

DMTCP 5.0 reads all memory of a process, finds none of these in /proc/self/maps, and ends the
process at the first one. So they are taken away before, and put back after, in a process that was
restarted too. Which there are is known from Linux 6.15 on, by PAGEMAP_SCAN (an ioctl,
Documentation/admin-guide/mm/pagemap.rst). glibc 2.42 makes the ends of threads' stacks of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
from typing import Final

_SCAN: Final = 0xC0606610
_ARGUMENTS: Final = struct.Struct("12Q")
_REGION: Final = struct.Struct("3Q")
_IS_GUARD: Final = 1 << 8
_MOST: Final = 512
_INSTALL, _REMOVE = 102, 103

Ranges = list[tuple[int, int]]
"""Start and end of each."""


def find() -> Ranges:
    """Those of this process; none where this Linux knows none, or does not tell."""
    found: Ranges = []
    room = ctypes.create_string_buffer(_MOST * _REGION.size)
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        at, last = 0, _last()
        while at < last:
            asked = bytearray(
                _ARGUMENTS.pack(
                    *(_ARGUMENTS.size, 0, at, last, 0, ctypes.addressof(room), _MOST),
                    *(0, 0, _IS_GUARD, 0, _IS_GUARD),
                )
            )
            count = fcntl.ioctl(pagemap, _SCAN, asked)
            found += [
                region[:2] for region in _REGION.iter_unpack(room.raw[: count * _REGION.size])
            ]
            at = _ARGUMENTS.unpack(asked)[4]
    return found


def _last() -> int:
    """Where memory ends, but for what is the kernel's ([vsyscall])."""
    with open("/proc/self/maps") as lines:
        ends = [int(line.partition("-")[2].split()[0], 16) for line in lines]
    return max(end for end in ends if end < 1 << 63)


def lift() -> Ranges:
    """Take them away; return which they were."""
    found = find()
    _advise(found, _REMOVE)
    return found


def install(ranges: Ranges) -> None:
    """Put them back. What was written there meanwhile is gone; it would have been refused."""
    _advise(ranges, _INSTALL)


def _advise(ranges: Ranges, advice: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for start, end in ranges:
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
