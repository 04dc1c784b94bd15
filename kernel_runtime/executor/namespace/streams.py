"""Pieces of a dump on their way to the sink: cut, named by their content, sent only if missing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Final
from zlib import crc32

from kernel_runtime import hashing
from kernel_runtime.executor.namespace.session import Sink, Source

Piece = list[str | int]
"""[digest, size in bytes], as the manifest has it."""

Cut = Callable[[memoryview], Iterator[memoryview]]
"""Cuts a stream into pieces at places that its content decides; the last is what is left."""

BUFFER_PIECE: Final = 4 << 20
_SHORTEST: Final = 64 << 10
_LONGEST: Final = 1 << 20
_BATCH: Final = 16 << 20
_HELD: Final = 8 << 20


def cut_by_content(view: memoryview) -> Iterator[memoryview]:
    """Pieces of 64 KiB to 1 MiB, where the C library that does it better is not there.

    A piece may end after each MEMOIZE of a pickle, and does where a sum of what stands before it
    says so: about each 256th time.
    """
    start = 0
    while len(view) - start > _SHORTEST:
        data = bytes(view[start : start + _LONGEST])
        end = _SHORTEST
        while True:
            end = data.find(b"\x94", end) + 1
            if not end or crc32(data[end - 32 : end]) & 0xFF == 0:
                break
        yield view[start : start + (end or len(data))]
        start += end or len(data)
    if start < len(view):
        yield view[start:]


class Uploader:
    """Sends pieces that the sink has not, asking for many at once."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._done: set[str] = set()
        self._waiting: dict[str, tuple[bytes | memoryview, str | None]] = {}
        self._bytes = 0

    def add(self, data: bytes | memoryview) -> Piece:
        """Take a piece, which must not change until ``flush``."""
        return self._take(data, hashlib.blake2b(data, digest_size=32).hexdigest())

    def add_memory(self, memory: memoryview, older: Sequence[str] = ()) -> list[Piece]:
        """Take a buffer (contiguous, format ``B``), in pieces of one size.

        older: the digests of the pieces that it had before.
        """
        pieces = [
            memory[start : start + BUFFER_PIECE] for start in range(0, len(memory), BUFFER_PIECE)
        ]
        found: list[Piece] = []
        for start in range(0, len(pieces), hashing.AT_ONCE):  # sent while they are in the caches
            group = pieces[start : start + hashing.AT_ONCE]
            before = islice(chain(older, repeat(None)), start, None)
            found += map(self._take, group, hashing.digests(group), before)
        return found

    def _take(self, data: bytes | memoryview, digest: str, older: str | None = None) -> Piece:
        if digest not in self._done:
            self._done.add(digest)
            self._waiting[digest] = data, older
            self._bytes += len(data)
            if self._bytes >= _BATCH:
                self.flush()
        return [digest, len(data)]

    def flush(self) -> None:
        """Send what waits."""
        if self._waiting:
            for digest in self._sink.missing(list(self._waiting)):
                self._sink.put(digest, *self._waiting[digest])
            self._waiting.clear()
            self._bytes = 0


class Recording:
    """What a pickler writes, kept in memory up to a size; ``data`` is None beyond it."""

    def __init__(self, limit: int) -> None:
        self._parts: list[bytes] = []
        self._limit = limit
        self.size = 0

    def write(self, data: bytes) -> None:
        """For the pickler."""
        self.size += len(data)
        if self.size <= self._limit:
            self._parts.append(data)
        else:
            self._parts.clear()

    @property
    def data(self) -> bytes | None:
        """All of it, unless it was too much."""
        return b"".join(self._parts) if self.size <= self._limit else None


class StreamWriter:
    """A stream that goes to the sink while it is written."""

    def __init__(self, uploader: Uploader, cut: Cut) -> None:
        self._uploader = uploader
        self._cut = cut
        self._held = bytearray()
        self._pieces: list[Piece] = []

    def write(self, data: bytes) -> None:
        """For the pickler, which hands over large objects whole."""
        if len(data) >= _HELD:
            self._send(memoryview(bytes(self._held)), is_last=True)
            self._held.clear()
            self._send(memoryview(data), is_last=True)
            return
        self._held += data
        if len(self._held) >= _HELD:
            held = memoryview(bytes(self._held))
            self._held = bytearray(self._send(held, is_last=False))

    def finish(self) -> list[Piece]:
        """Send the rest; the pieces of the whole stream, in order."""
        self._send(memoryview(bytes(self._held)), is_last=True)
        self._held.clear()
        return self._pieces

    def _send(self, data: memoryview, *, is_last: bool) -> memoryview:
        """Send ``data`` in pieces, but for the last one, which is given back unless ``is_last``."""
        held: memoryview | None = None
        for piece in self._cut(data):
            if held is not None:
                self._pieces.append(self._uploader.add(held))
            held = piece
        if held is None or not is_last:
            return data[:0] if held is None else held
        self._pieces.append(self._uploader.add(held))
        return data[:0]


class StreamReader:
    """A stream of the manifest as a file for the unpickler."""

    def __init__(self, pieces: Sequence[Piece], source: Source) -> None:
        self._digests = [str(digest) for digest, _ in reversed(pieces)]
        self._source = source
        self._piece = memoryview(b"")

    def _fill(self) -> bool:
        while not self._piece and self._digests:
            self._piece = memoryview(self._source.get(self._digests.pop()))
        return bool(self._piece)

    def read(self, size: int = -1) -> bytes:
        """Exactly ``size`` bytes, fewer only at the end; all if it is negative."""
        parts: list[memoryview] = []
        while size and self._fill():
            part = self._piece[:size] if size > 0 else self._piece
            self._piece = self._piece[len(part) :]
            size -= len(part) if size > 0 else 0
            parts.append(part)
        return b"".join(parts)

    def readinto(self, target: memoryview) -> int:
        """Fill ``target``; how many bytes there were."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view) and self._fill():
            part = self._piece[: len(view) - done]
            view[done : done + len(part)] = part
            self._piece = self._piece[len(part) :]
            done += len(part)
        return done

    def readline(self) -> bytes:
        """Up to a newline, and with it."""
        parts: list[bytes] = []
        while self._fill():
            whole = bytes(self._piece)
            end = whole.find(b"\n") + 1
            parts.append(whole[: end or None])
            self._piece = self._piece[len(parts[-1]) :]
            if end:
                break
        return b"".join(parts)
