"""The bytes of a process image: what native/image.h writes and its loader reads. Pure.

A frozen process streams *records*; a *plan* says the loader which memory comes from where. Sizes
and offsets are in bytes, addresses are those of the process.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import field
from enum import IntEnum
from typing import Final, NamedTuple

from kernel_runtime.later import dataclass

RECORD: Final = struct.Struct("=II")
RANGE: Final = struct.Struct("=QQ")
END: Final = struct.Struct("=iIQ")
PIECE: Final = 1 << 20
"""No record of pages is larger, or crosses a multiple of it."""

_MAP: Final = struct.Struct("=6Q4I")
_PLAN_MAP: Final = struct.Struct("=6Q4IQ")
_PLAN_COUNTS: Final = struct.Struct("=QIIII")
_RUN: Final = struct.Struct("=QQQII")
_HEAD_LARGEST: Final = 1 << 16


class Tag(IntEnum):
    """enum tt_image_tag."""

    HEAD = 1
    MAP = 2
    PAGES = 3
    GUARD = 4
    LAZY = 5
    END = 6


class FormatError(ValueError):
    """These bytes are not what native/image.h says."""


class Mapping(NamedTuple):
    """struct tt_image_map, and its path (empty: anonymous memory)."""

    start: int
    end: int
    offset: int
    file_size: int
    mtime_ns: int
    ctime_ns: int
    prot: int
    flags: int
    advice: int
    path: bytes

    @classmethod
    def decode(cls, record: bytes) -> Mapping:
        """Raises FormatError."""
        if len(record) < _MAP.size:
            raise FormatError("a mapping is cut off")
        numbers = _MAP.unpack_from(record)
        path = record[_MAP.size :]
        if len(path) != numbers[9] or path[-1:] != b"\0"[: len(path)]:
            raise FormatError("a path is cut off")
        return cls._make((*numbers[:9], path[:-1]))


class Run(NamedTuple):
    """struct tt_plan_run: memory from a page file. lazy: mapped, not read."""

    start: int
    size: int
    offset: int
    page_file: int
    lazy: int = 0


@dataclass
class Plan:
    """struct tt_plan: all that the loader needs but the page files."""

    head: bytes
    maps: list[Mapping] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    """Sorted by address."""
    guards: list[tuple[int, int]] = field(default_factory=list)
    page_files: int = 0

    def encode(self) -> bytes:
        """The bytes for the loader."""
        fixed = (
            len(self.head)
            + _PLAN_COUNTS.size
            + len(self.maps) * _PLAN_MAP.size
            + len(self.runs) * _RUN.size
            + len(self.guards) * RANGE.size
        )
        text = bytearray()
        places: dict[bytes, int] = {b"": 0}
        maps = bytearray()
        for m in self.maps:
            if m.path not in places:
                places[m.path] = fixed + len(text)
                text += m.path + b"\0"
            path_size = len(m.path) + 1 if m.path else 0
            maps += _PLAN_MAP.pack(*m[:9], path_size, places[m.path])
        counts = _PLAN_COUNTS.pack(
            fixed + len(text), len(self.maps), len(self.runs), len(self.guards), self.page_files
        )
        runs = b"".join(_RUN.pack(*run) for run in self.runs)
        guards = b"".join(RANGE.pack(*guard) for guard in self.guards)
        return b"".join((self.head, counts, maps, runs, guards, text))

    @classmethod
    def decode(cls, data: bytes, head_size: int) -> Plan:
        """Read what encode made. Raises FormatError."""
        try:
            size, maps, runs, guards, page_files = _PLAN_COUNTS.unpack_from(data, head_size)
            if size != len(data):
                raise FormatError("the plan is cut off")
            plan = cls(bytes(data[:head_size]), page_files=page_files)
            at = head_size + _PLAN_COUNTS.size
            for _ in range(maps):
                numbers = _PLAN_MAP.unpack_from(data, at)
                path_size, place = numbers[9:]
                path = bytes(data[place : place + max(path_size - 1, 0)])
                plan.maps.append(Mapping._make((*numbers[:9], path)))
                at += _PLAN_MAP.size
            for _ in range(runs):
                plan.runs.append(Run(*_RUN.unpack_from(data, at)))
                at += _RUN.size
            for _ in range(guards):
                plan.guards.append(RANGE.unpack_from(data, at))
                at += RANGE.size
        except struct.error as cause:
            raise FormatError("the plan is cut off") from cause
        return plan


class Segment(NamedTuple):
    """Bytes of a page file."""

    size: int
    page_file: int
    offset: int


class RunList:
    """Runs, for finding what is at an address."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._starts = [run.start for run in runs]

    def segments(self, start: int, size: int) -> Iterator[Segment | int]:
        """What [start, start + size) is made of, in order; an int is so many bytes of nothing."""
        end = start + size
        at = max(bisect_right(self._starts, start) - 1, 0)
        while start < end:
            run = self._runs[at] if at < len(self._runs) else None
            if run is not None and run.start + run.size <= start:
                at += 1
                continue
            if run is None or run.start >= end:
                yield end - start
                return
            if run.start > start:
                yield run.start - start
                start = run.start
            part = min(run.start + run.size, end) - start
            yield Segment(part, run.page_file, run.offset + start - run.start)
            start += part


class RunBuilder:
    """Runs in the making: joined where memory and page file both go on."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(self, start: int, segment: Segment) -> None:
        """Add the next one; start must not be below the end of the last one."""
        if self.runs:
            last = self.runs[-1]
            if (
                last.start + last.size == start
                and last.page_file == segment.page_file
                and last.offset + last.size == segment.offset
            ):
                self.runs[-1] = last._replace(size=last.size + segment.size)
                return
        self.runs.append(Run(start, segment.size, segment.offset, segment.page_file))


def mark_lazy(runs: list[Run], ranges: list[tuple[int, int]], least: int, most: int) -> list[Run]:
    """Split runs at the ends of the ranges (start, size), and mark what is to be mapped.

    That is what lies within a range and has at least so many bytes; more where there would be more
    than most mappings of them, as the kernel limits their number (vm.max_map_count).
    """
    result: list[Run] = []
    edges = sorted(ranges)
    at = 0
    for run in runs:
        while run.size:
            while at < len(edges) and edges[at][0] + edges[at][1] <= run.start:
                at += 1
            inside = at < len(edges) and edges[at][0] <= run.start
            if at == len(edges):
                limit = run.start + run.size
            else:
                limit = edges[at][0] + (edges[at][1] if inside else 0)
            size = min(run.size, limit - run.start)
            result.append(Run(run.start, size, run.offset, run.page_file, int(inside)))
            run = Run(run.start + size, run.size - size, run.offset + size, run.page_file)
    while sum(run.lazy and run.size >= least for run in result) > most:
        least *= 2
    return [run._replace(lazy=int(run.lazy and run.size >= least)) for run in result]


def check_head(head: bytes) -> None:
    """Raises FormatError where that is not a head of an image."""
    if not head.startswith(b"TTIMAGE\0") or len(head) > _HEAD_LARGEST or len(head) % 8:
        raise FormatError("it does not begin as an image does")
