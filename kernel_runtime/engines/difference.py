"""Checkpoints without a process so far: differences from a process frozen earlier, their base.

A freeze may note what was written since its base was cloned (native/difference.h) in place of
cloning the executor again: no cell pays for copy-on-write then. The file is held here. As soon as
anybody asks such a frozen process for anything, its base makes it (engines/fork.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from kernel_runtime import linux
from kernel_runtime.later import dataclass

if TYPE_CHECKING:
    from kernel_runtime.engines.base import Frozen, LiveExecutor

_NAME = "timetravel-difference"

_IN_A_ROW = 32
"""Differences from one base."""

_IN_VAIN = 48 << 20
"""Bytes that they may have noted again and again: each holds all that was written since the base,
also what one cell wrote and no other."""

_TRIES = 2
"""Freezes in a row that were to be differences and were not, before some are left out."""

_LEFT_OUT_MOST = 8
"""Freezes in a row that are not tried: looking takes a part of a millisecond of the pause."""


class Place(NamedTuple):
    """Where a difference is written, or was."""

    file: int
    """A descriptor; the file has all differences of an engine."""
    at: int
    """The byte that it begins at."""


@dataclass
class Difference:
    """What a frozen process is to be made of."""

    base: Frozen
    place: Place
    bytes: int
    starting: asyncio.Lock
    """Held while the process is made."""
    closed: bool = False

    def close(self) -> None:
        """Give its memory back. The second call does nothing."""
        if not self.closed:
            self.closed = True
            self._give_back()

    async def close_aside(self) -> None:
        """Likewise, in a thread: it takes a millisecond, and many may go in a row."""
        if not self.closed:
            self.closed = True
            await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):  # it goes with the kernel
            linux.punch_hole(self.place.file, self.place.at, _whole_pages(self.bytes))


@dataclass
class _Base:
    executor: LiveExecutor
    pid: int
    """Of the process that the executor was cloned to: the executor knows the base by it."""
    frozen: Frozen
    """Who makes processes of the differences: that process, or a later one that took its place."""
    count: int = 0
    least: int = 0
    """Bytes of the smallest difference from it: what any cell writes."""
    in_vain: int = 0
    """Bytes that differences had more than that."""

    @property
    def is_worn(self) -> bool:
        """Whether a new one is better."""
        return self.count >= _IN_A_ROW or self.in_vain >= _IN_VAIN


@dataclass
class Differences:
    """Of one engine: which process is the base, and who waits for it."""

    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[Frozen] = field(default_factory=list)
    """Oldest first."""
    _base: _Base | None = None
    _file: int = -1
    _end: int = 0
    """Of the last difference in the file."""
    _preparing: asyncio.Future[None] | None = None
    _least: int = 0
    """Of the base before."""
    _failed: int = 0
    _leave_out: int = 0

    def place(self, executor: LiveExecutor) -> tuple[Place | None, int]:
        """For the next freeze, best with room that need not be made in the pause, or None; and the
        base's id in the executor's eyes, or 0."""
        if not executor.differences:
            return None, 0
        if self._leave_out:
            self._leave_out -= 1
            return None, 0
        if self._file < 0:
            self._file = os.memfd_create(_NAME)
        base = self._usable(executor)
        return Place(self._file, self._end), 0 if base is None else base.pid

    def _usable(self, executor: LiveExecutor) -> _Base | None:
        """The base, if a difference from it is wanted."""
        base = self._base
        if base is None or base.executor is not executor or base.is_worn:
            return None
        return base

    def add(self, frozen: Frozen, place: Place, size: int) -> bool:
        """A freeze was noted there. False if the base is gone."""
        base = self._base
        if base is None:
            return False
        base.count += 1
        base.least = min(base.least or size, size)
        base.in_vain += size - min(base.least, self._least or base.least)
        self._failed = 0
        self._end = place.at + _whole_pages(size)
        frozen.difference = Difference(base.frozen, place, size, self.starting)
        self._preparing = asyncio.ensure_future(self._prepare(size + size // 8))
        frozen.hot_bytes = 0  # nobody shares with the executor what it has written
        self.waiting.append(frozen)
        return True

    async def _prepare(self, size: int) -> None:
        with contextlib.suppress(OSError):  # no memory: the freeze will find out
            await asyncio.to_thread(os.posix_fallocate, self._file, self._end, size)

    def cloned(self, executor: LiveExecutor, frozen: Frozen, had_file: bool) -> None:
        """A freeze made a process. It is the base of later ones, if the executor had a file."""
        if self._base is not None and self._base.least:
            self._least = self._base.least
        if had_file and self._usable(executor) is not None:
            self._failed += 1
            if self._failed > _TRIES:
                self._leave_out = min(1 << (self._failed - _TRIES), _LEFT_OUT_MOST)
        self._base = _Base(executor, frozen.pid, frozen) if had_file else None

    def moved(self) -> None:
        """The executor is gone: what follows shares nothing with the base."""
        self._base = None

    def ended(self, pid: int) -> None:
        """A process has ended unasked. Without its base a difference is of no use."""
        if self._base is not None and pid == self._base.frozen.pid:
            self._base = None

    async def before_it_goes(
        self, frozen: Frozen, settle: Callable[[Frozen], Awaitable[None]]
    ) -> None:
        """Have another take a base's place: the oldest of those that wait for it.

        A difference holds everything that was written since the base, so it is one from any process
        of the time between, too.
        """
        heir = None
        while left := [(f, d) for f, d in self._waiting() if d.base is frozen]:
            first, difference = left[0]
            if heir is not None:
                difference.base = heir
                continue
            try:
                await settle(first)
                heir = first
            except OSError:  # the session learns of it when the base ends
                difference.close()
        if self._base is not None and self._base.frozen is frozen:
            if heir is not None:
                self._base.frozen = heir
            else:
                self._base = None

    def _waiting(self) -> list[tuple[Frozen, Difference]]:
        found = [(f, f.difference) for f in self.waiting if f.difference is not None]
        found = [(f, d) for f, d in found if not d.closed]
        self.waiting = [f for f, _ in found]
        return found


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
