"""An image on its way into the store: what is new in it, and what its base has already.

See images.py, which keeps the files.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from kernel_runtime.hashing import digests
from kernel_runtime.store.image_format import (
    END,
    PIECE,
    RANGE,
    RECORD,
    FormatError,
    Mapping,
    Plan,
    RunBuilder,
    RunList,
    Segment,
    Tag,
    check_head,
    mark_lazy,
)
from kernel_runtime.store.image_model import FileInUse
from kernel_runtime.store.image_pages import Output, Pages

BLOCK: Final = 64 << 10
BLOCK_ENTRY: Final = struct.Struct("=QQ32s")
"""Address, size and digest of a block."""

_PAGE: Final = mmap.PAGESIZE
_NO_KEYS: Final = (
    "the keys that sign return addresses on this processor could not be read: ptrace(2) of a "
    "process of its own is refused, or the kernel is built without CONFIG_CHECKPOINT_RESTORE"
)
_LAZY_LEAST: Final = 256 << 10
_LAZY_MOST: Final = 10_000
_RECORD_MOST: Final = 1 << 17


class Base:
    """The image before, for what is in it already."""

    def __init__(
        self, names: list[str], plan: Plan, blocks: bytes, pages: Sequence[Pages], *, sealed: bool
    ) -> None:
        """names: whose the page files are. sealed: it costs as much to see what is in them as to
        hash it, so what is the same is told by its digest."""
        self.names = names
        self._views = pages
        self._is_sealed = sealed
        self._runs = RunList(plan.runs)
        self._found: tuple[int, int] | None = None
        self._behind = 0
        self._digests: dict[tuple[int, int], bytes] = {}
        self._places: dict[bytes, tuple[int, int]] = {}
        for start, size, digest in BLOCK_ENTRY.iter_unpack(blocks):
            self._digests[start, size] = digest
            self._places[digest] = (start, size)

    def find(self, digest: bytes, start: int, size: int) -> list[Segment] | None:
        """Where a block with that digest is: at its address, or behind the one that was found
        before, if it can be.

        So that what was in one piece stays in one: a large piece can be mapped. For the same reason
        one block does not stand for many (an array of ones).
        """
        place = start, size
        if self._digests.get(place) != digest:
            place = self._behind, size
        if self._digests.get(place) != digest:
            found = self._places.get(digest)
            if found is None or found == self._found:
                return None
            place = found
        self._found, self._behind = place, sum(place)
        return self._segments(*place)

    def same(self, start: int, new: bytes) -> tuple[bytes, list[Segment]] | None:
        """Digest and place of the block at that address, if it has these bytes."""
        if self._is_sealed:
            return None
        digest = self._digests.get((start, len(new)))
        segments = self._segments(start, len(new)) if digest else None
        if digest is None or segments is None:
            return None
        at = 0
        for size, page_file, offset in segments:
            view = self._views[page_file]
            if view[offset : offset + size] != (new if size == len(new) else new[at : at + size]):
                return None
            at += size
        return digest, segments

    def _segments(self, start: int, size: int) -> list[Segment] | None:
        parts = list(self._runs.segments(start, size))
        segments = [part for part in parts if isinstance(part, Segment)]
        return segments if len(segments) == len(parts) else None

    def at(self, start: int, size: int) -> Iterator[tuple[int, Segment | None, bytes]]:
        """What it has at that address: (size, where, its bytes), in order."""
        for part in self._runs.segments(start, size):
            if isinstance(part, int):
                yield part, None, b""
                continue
            view = self._views[part.page_file]
            yield part.size, part, view[part.offset : part.offset + part.size]

    def close(self) -> None:
        """Unmap the page files."""
        for view in self._views:
            view.close()


class Taking:
    """One image on its way in. Page file 0 is its own, the others are the base's."""

    def __init__(self, pages: Output, base: Base | None) -> None:
        self._pages = pages
        self._base = base
        self._end = 0
        self._runs = RunBuilder()
        self._head = b""
        self._maps: list[Mapping] = []
        self._guards: list[tuple[int, int]] = []
        self._lazy: list[tuple[int, int]] = []
        self.blocks = bytearray()
        self.files: dict[str, FileInUse] = {}
        self.bytes = 0

    def all(self, stream: socket.socket) -> None:
        """Read to the end. Raises OSError (of the clone, too), FormatError."""
        room = memoryview(bytearray(PIECE))
        while True:
            tag, size = RECORD.unpack(_receive(stream, room[: RECORD.size]))
            if size > _RECORD_MOST:
                raise FormatError("a record is too large")
            record = bytes(_receive(stream, room[:size]))
            if tag == Tag.PAGES:
                start, length = RANGE.unpack(record)
                if not 0 < length <= PIECE or (start | length) % _PAGE:
                    raise FormatError("pages are not aligned")
                self._add(start, _receive(stream, room[:length]))
            elif tag == Tag.MAP:
                self._map(Mapping.decode(record))
            elif tag == Tag.GUARD:
                self._guards.append(RANGE.unpack(record))
            elif tag == Tag.LAZY:
                self._lazy.append(RANGE.unpack(record))
            elif tag == Tag.HEAD:
                check_head(record)
                self._head = record
            elif tag == Tag.END:
                error, maps, length = END.unpack(record)
                if error == errno.EKEYREJECTED:
                    raise OSError(error, _NO_KEYS)
                if error:
                    raise OSError(error, f"its memory could not be written, {os.strerror(error)}")
                if not self._head or maps != len(self._maps) or length != self.bytes:
                    raise FormatError("parts of the image are missing")
                return
            else:
                raise FormatError(f"there is a record of kind {tag}")

    def plan(self) -> tuple[Plan, list[str]]:
        """The plan, and whose page files it refers to: "" is its own."""
        names = ["", *(self._base.names if self._base else ())]
        used = sorted({run.page_file for run in self._runs.runs})
        index = {old: new for new, old in enumerate(used)}
        runs = [run._replace(page_file=index[run.page_file]) for run in self._runs.runs]
        runs = mark_lazy(runs, self._lazy, _LAZY_LEAST, _LAZY_MOST)
        plan = Plan(self._head, self._maps, runs, self._guards, len(used))
        return plan, [names[old] for old in used]

    def _map(self, m: Mapping) -> None:
        self._maps.append(m)
        if m.path:
            path = os.fsdecode(m.path)
            used = FileInUse(path, m.file_size, m.mtime_ns, m.ctime_ns)
            if self.files.setdefault(path, used) != used:
                raise FormatError(f"{path} changed meanwhile")

    def _add(self, start: int, data: memoryview) -> None:
        self.bytes += len(data)
        blocks = list(_blocks(start, data))
        found = [self._base.same(*block) if self._base else None for block in blocks]
        names = iter(
            digests([memoryview(new) for (_, new), same in zip(blocks, found) if not same])
        )
        for (place, new), same in zip(blocks, found):
            digest = same[0] if same else bytes.fromhex(next(names))
            segments = _ours(same[1]) if same else self._place(place, new, digest)
            self.blocks += BLOCK_ENTRY.pack(place, len(new), digest)
            for segment in segments:
                self._runs.add(place, segment)
                place += segment.size

    def _place(self, start: int, new: bytes, digest: bytes) -> list[Segment]:
        """Where a block is that is not the base's there; it is stored where it is nowhere yet."""
        known = self._base.find(digest, start, len(new)) if self._base else None
        return _ours(known) if known else self._store(start, new)

    def _store(self, start: int, new: bytes) -> list[Segment]:
        if self._base is None:
            return [self._append(new)]
        result: list[Segment] = []
        at = 0
        for size, where, old in self._base.at(start, len(new)):
            if where is None:
                result.append(self._append(new[at : at + size]))
            else:
                result += self._compare(new[at : at + size], _ours([where])[0], old)
            at += size
        return result

    def _compare(self, new: bytes, where: Segment, old: bytes) -> Iterator[Segment]:
        for at in range(0, len(new), _PAGE):
            page = new[at : at + _PAGE]
            if page == old[at : at + _PAGE]:
                yield Segment(_PAGE, where.page_file, where.offset + at)
            else:
                yield self._append(page)

    def _append(self, data: bytes) -> Segment:
        self._pages.write(data)
        self._end += len(data)
        return Segment(len(data), 0, self._end - len(data))


def _blocks(start: int, data: memoryview) -> Iterator[tuple[int, bytes]]:
    """Parts of what lies at start, none of which goes over a multiple of a block's size."""
    at = 0
    while at < len(data):
        size = min(BLOCK - (start + at) % BLOCK, len(data) - at)
        yield start + at, bytes(data[at : at + size])
        at += size


def _ours(segments: list[Segment]) -> list[Segment]:
    """Segments of the base as the new image numbers them."""
    return [segment._replace(page_file=segment.page_file + 1) for segment in segments]


def _receive(stream: socket.socket, room: memoryview) -> memoryview:
    got = 0
    while got < len(room):
        n = stream.recv_into(room[got:], flags=socket.MSG_WAITALL)
        if n == 0:
            raise FormatError("the process that wrote it ended before its end")
        got += n
    return room
