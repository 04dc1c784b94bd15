"""From a file to chunks in the store.

A file is cut at fixed offsets. The chunk size follows from the file's size alone: 64 KiB up to
4 MiB, then size/64 rounded up to a power of two, at most 4 MiB. So a small change in place, or
an append, costs 1/64 of a file or 4 MiB, whichever is less, and a file has few chunks. Bytes
inserted near the front move all that follows, and the file is stored anew: finding cut points
by content costs more than reading in pure Python.

Holes of 64 KiB and more are found with SEEK_DATA and SEEK_HOLE, lseek(2), and neither read nor
stored.
"""

from __future__ import annotations

import os
from typing import Final

from kernel_runtime.engines.workspace.model import Chunk
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.holes import MIN_SEGMENT, data_segments

MIN_CHUNK: Final = MIN_SEGMENT
MAX_CHUNK: Final = 4 << 20
_CHUNKS: Final = 64
_BLOCK: Final = 4096


class ShortRead(Exception):
    """The file became shorter while it was read."""


def chunk_size(size: int) -> int:
    """Bytes per chunk of a file of this many bytes."""
    chunk = MIN_CHUNK
    while chunk * _CHUNKS < size and chunk < MAX_CHUNK:
        chunk *= 2
    return chunk


class ContentReader:
    """Reads files into a store; remembers from which filesystems blocks can be shared."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._no_clone: set[int] = set()
        self.read_bytes = 0
        """Bytes read from user files since this object was made."""

    def read(self, fd: int, size: int, device: int) -> tuple[Chunk, ...]:
        """Store the first size bytes of fd, a file on device (st_dev).

        Where blocks can be shared, a clone of the whole file is read instead, so that all of
        it is from one moment. Raises ShortRead, BlobError or OSError.
        """
        if size >= MIN_CHUNK and device not in self._no_clone:
            clone = self._store.scratch_clone(fd)
            if clone is None:
                self._no_clone.add(device)
            else:
                try:
                    return self._chunks(clone, size, shared=True)
                finally:
                    os.close(clone)
        return self._chunks(fd, size, shared=False)

    def _chunks(self, fd: int, size: int, *, shared: bool) -> tuple[Chunk, ...]:
        step = chunk_size(size)
        chunks: list[Chunk] = []
        for begin, end in data_segments(fd, size):
            offset = begin
            while offset < end:
                length = min(step - offset % step, end - offset)
                data = self._read(fd, offset, length)
                clone = (fd, offset) if shared and offset % _BLOCK == 0 else None
                chunks.append((offset, length, self._store.put(data, clone=clone)))
                offset += length
        return tuple(chunks)

    def _read(self, fd: int, offset: int, length: int) -> bytes:
        data = os.pread(fd, length, offset)
        while len(data) < length:
            more = os.pread(fd, length - len(data), offset + len(data))
            if not more:
                raise ShortRead
            data += more
        self.read_bytes += length
        return data
