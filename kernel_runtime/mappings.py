"""The shared mappings of a process: memory that others see too, or a file that it writes unseen.

The kernel is asked for them one by one and passes over all others (PROCMAP_QUERY, Linux 6.11,
uapi/linux/fs.h). Before, they are found in the text of /proc/PID/maps (proc(5)), which the kernel
writes, and Python reads, for every mapping of every library.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_QUERY: Final = struct.Struct("=QQQ QQQQQQ IIII QQ")
"""struct procmap_query: size, flags, address; start, end, flags, page size, offset, inode; device's
numbers, sizes and addresses of two buffers."""

_ASK: Final = 0xC0686611  # _IOWR('f', 17, struct procmap_query)
_WRITABLE: Final = 2
_SHARED: Final = 8
_COVERING_OR_NEXT: Final = 16
_READ_TEXT: Final = (
    errno.ENOTTY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EPERM,
    errno.EACCES,
    errno.ENAMETOOLONG,
)
"""What kernels answer that do not know the question, a filter that does not let it through, and
where a path is too long to be told so: the text is read then."""


class Mapping(NamedTuple):
    """device: as st_dev. path: where it was mapped from, as proc(5) has it."""

    device: int
    inode: int
    path: bytes


def shared(proc: str, *, writable: bool = False) -> list[Mapping]:
    """Those of the process whose directory below /proc is proc. writable: only these.

    Raises OSError where it has ended or may not be looked at.
    """
    with open(f"{proc}/maps", "rb", buffering=0) as file:
        try:
            return list(_asked(file.fileno(), writable))
        except OSError as error:
            if error.errno not in _READ_TEXT:
                raise
        return list(_read(file.readall(), writable))


def _asked(fd: int, writable: bool) -> Iterator[Mapping]:
    import fcntl  # not at the top: Windows has none
    from ctypes import addressof, create_string_buffer

    name = create_string_buffer(4096)  # PATH_MAX: the kernel takes no more
    wanted = _COVERING_OR_NEXT | _SHARED | (_WRITABLE if writable else 0)
    address = 0
    while True:
        question = bytearray(_QUERY.size)
        _QUERY.pack_into(
            question, 0,
            *(_QUERY.size, wanted, address), *[0] * 6, *(0, 0, len(name), 0), addressof(name), 0,
        )  # fmt: skip
        try:
            fcntl.ioctl(fd, _ASK, question)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        _, _, _, _, address, _, _, _, inode, major, minor, length, *_ = _QUERY.unpack(question)
        path = name.raw[: length - 1] if length else b""  # its end is a zero
        yield Mapping(os.makedev(major, minor), inode, path)


def _read(text: bytes, writable: bool) -> Iterator[Mapping]:
    for line in text.splitlines():
        _, mode, _, device, inode, *path = line.split(None, 5)
        if mode[3:4] == b"s" and (mode[1:2] == b"w" or not writable):
            major, _, minor = device.partition(b":")
            number = os.makedev(int(major, 16), int(minor, 16))
            yield Mapping(number, int(inode), path[0] if path else b"")
