"""When a session was at rest: a file that was made then is another program's.

Spans of wall-clock time between requests, in which nothing of the session's was at work: no request
ran or waited, nothing was captured or restored, the process had no children, and its threads, but
for the one that waits for requests, did not run. In doubt the session was not at rest. Known of
this kernel only: what is older counts as the session's own.

Not seen: what a cell left to run in the waiting thread itself (a task of asyncio), and a process
whose parent has ended, if it has ended too.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

_TICK_NS: Final = 12_000_000
"""File times are those of the last clock tick: up to 10 ms old, never ahead."""

_LOOKS: Final = 5
_AT_ONCE_NS: Final = 100_000

_Work = dict[str, str]


class Rest:
    """The spans in which one session was at rest. All times are nanoseconds since the epoch."""

    def __init__(self, processes: Callable[[], Iterable[str]]) -> None:
        """processes: directories below /proc of the session's own; none while there is none."""
        self._processes = processes
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._since: int | None = None
        self._work: _Work = {}
        self._clock = _offset()

    def begins(self) -> None:
        """Nothing runs and nothing waits from now on; said again it changes nothing."""
        if self._since is None and (work := self._worked()) is not None:
            self._since, self._work = time.time_ns(), work

    def ends(self) -> None:
        """Something is about to be done."""
        since, self._since = self._since, None
        if since is None or self._worked() != self._work:
            return
        if abs(_offset() - self._clock) > _TICK_NS // 3:  # the clock was set: order means nothing
            self._begins.clear()
            self._ends.clear()
            self._clock = _offset()
            return
        end = time.time_ns() - _TICK_NS  # what is written from now on may bear a time from before
        if since < end:
            self._begins.append(since)
            self._ends.append(end)

    def holds(self, at_ns: int) -> bool:
        """Whether the session was at rest at that time, for sure."""
        at = bisect_right(self._begins, at_ns) - 1
        return at >= 0 and at_ns <= self._ends[at]

    def _worked(self) -> _Work | None:
        """How long each thread but the first has run; None where it cannot be told, or there are
        children."""
        if not sys.platform.startswith("linux"):
            return None
        found: _Work = {}
        for proc in self._processes():
            try:
                for thread in os.listdir(f"{proc}/task"):
                    with open(f"{proc}/task/{thread}/children") as children:
                        if children.read():
                            return None
                    if thread != os.path.basename(proc):
                        with open(f"{proc}/task/{thread}/schedstat") as times:
                            found[thread] = times.read().split()[0]
            except (OSError, IndexError):
                return None
        return found


def _offset() -> int:
    """Of the wall clock: as told when the other clock went on least meanwhile. Who is held up
    between the two has not seen the clock being set."""
    told = []
    for _ in range(_LOOKS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        told.append((time.monotonic_ns() - before, wall - before))
        if told[-1][0] < _AT_ONCE_NS:
            break
    return min(told)[1]
