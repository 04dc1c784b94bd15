"""Where a sparse file has data (lseek(2), SEEK_DATA and SEEK_HOLE)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

MIN_SEGMENT: Final = 64 << 10
"""Bytes: smaller holes are taken for data."""


def data_segments(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is not a hole. Raises OSError."""
    if size == 0:
        return
    if size < 2 * MIN_SEGMENT:
        yield 0, size
        return
    begin = end = 0
    while True:
        try:
            data = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as cause:
            if cause.errno == errno.ENXIO:  # nothing but a hole from here on
                break
            if cause.errno in (errno.EINVAL, errno.EOPNOTSUPP) and end == 0:
                yield 0, size  # the filesystem cannot tell
                return
            raise
        if data >= size:
            break
        hole = min(os.lseek(fd, data, os.SEEK_HOLE), size)
        if end and data - end < MIN_SEGMENT:
            end = hole  # too small a hole to be worth a chunk of its own
        else:
            if end > begin:
                yield begin, end
            begin, end = data, hole
        if end >= size:
            break
    if end > begin:
        yield begin, end
