"""Reading single files out of a snapshot, without restoring it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.store.blobs import BlobStore

_PIECE: Final = 1 << 20


def read_content(store: BlobStore, entry: Entry) -> Iterator[bytes]:
    """The bytes of a file, holes as zeros. Raises BlobError, OSError."""
    if entry.held:
        with open(store.held_path(entry.chunks[0][2]), "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
        return
    at = 0
    for offset, length, digest in entry.chunks:
        yield from _zeros(offset - at)
        yield store.get(digest)
        at = offset + length
    yield from _zeros(entry.size - at)


def write_copy(store: BlobStore, entry: Entry, destination: Path) -> None:
    """Write a file's content, holes kept, to a new file. Raises FileExistsError, BlobError."""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    fd = os.open(destination, flags, entry.mode & 0o700 | 0o600)
    try:
        if entry.held:
            for piece in read_content(store, entry):
                os.write(fd, piece)
        else:
            os.ftruncate(fd, entry.size)
            for offset, _, digest in entry.chunks:
                store.write_into(digest, fd, offset)
    finally:
        os.close(fd)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield bytes(min(count, _PIECE))
        count -= _PIECE
