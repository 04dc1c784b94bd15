"""The memory that frozen processes hold: measured, kept within a budget, spent where it helps.

Runs between cells. Frozen processes share pages with the live one and with each other until one of
them writes. What they cost is counted exactly: the proportional set sizes (proc(5), smaps_rollup)
of all of them, plus the live one's, less what the live one would hold without them (its Rss).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.base import Frozen
from kernel_runtime.supervisor.limits import memory_available, memory_limit, process_limit
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.retention import plan_evictions, plan_room
from kernel_runtime.timeline.text import plural

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_MEASURE_S = 0.02
"""Seconds that one round of measuring may take; it goes on with the others in the next round."""

_QUIET_S = 0.15
"""Seconds without a cell before upkeep begins."""

_QUIET_MUCH_S = 0.05
"""Likewise, where much is likely to be rewritten: for what is not copied then a cell pays."""

_REGAIN_S = 0.05
"""Seconds between two looks, while the frozen process copies, at what can be a huge page again."""

_AT_LATEST_S = 2.0
"""Seconds after which it is done all the same when cells come without a pause."""

_CORES_TO_SPARE = 3

_MUCH = 32 << 20
"""Bytes of likely rewrites that the writing to the disk waits for: some 20 ms of the next cell."""

_RESERVE = 0.1
"""Part of the memory that un-sharing leaves free, whatever the budget says."""

_GONE_S = 1.0
"""Seconds in which processes that were ended give their memory back."""

_WATCH_S = 2.0
"""Seconds between two looks at what the machine has left, while no cell runs."""

_LEFT = 0.125
"""Part of the budget that stays however little the machine has left: giving up these would not
help it much."""


class MemoryKeeper:
    """Measures, evicts, un-shares and prepares twins for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turn = 0
        self._shared_with_live = 0
        self.last_cow_tax_ms: float | None = None
        self._again = False
        self._unsharing: Frozen | None = None
        self._gone_back_to: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._given_up = 0
        self._stale: set[str] = set()  # what they hold alone has become more
        self.total = memory_limit()
        # the frozen ones may take half of what this user may have
        self._most_processes = process_limit() // 2

    @property
    def budget(self) -> int:
        """Bytes that all frozen processes together may hold alone."""
        return int(self.total * self._session.config.memory_fraction)

    @property
    def _over_budget(self) -> str:
        """Why a checkpoint has no process any more."""
        return f"memory budget of {self.budget >> 20} MiB"

    @property
    def frozen_bytes(self) -> int:
        """Bytes of memory in use that would be free without frozen processes."""
        held = sum(f.proportional_bytes for f in self._session.frozen.values())
        return max(0, held - self._shared_with_live)

    @property
    def shortage(self) -> int:
        """Bytes that are to be given back, as the machine has too little left; 0: none.

        Other kernels have a budget each, and other programs none. A machine without memory stands
        still for minutes before its kernel ends a process.
        """
        reserve = int(self.total * self._session.config.memory_reserve)
        return max(0, reserve - memory_available())

    @property
    def problem(self) -> str:
        """What a shortage has cost so far, while it lasts; "" otherwise."""
        if not self._given_up or not self.shortage:
            return ""
        return (
            f"This machine has little memory left: {plural(self._given_up, 'checkpoint')} gave "
            "up the process; their files, and what is on the disk, stay. Other kernels' "
            "checkpoints take memory too: end those that are not needed. %timetravel config "
            "memory_reserve=… says how much is to stay free."
        )

    async def watch(self) -> None:
        """Give memory back also while no cell runs. Ends with the session."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if self.shortage and self.frozen_bytes > self._least:
                self.see_to_it()

    @property
    def _least(self) -> int:
        return int(self.budget * _LEFT)

    def see_to_it(self) -> None:
        """See to a round of upkeep, off everyone's path; one at a time."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._rounds())
        else:
            self._again = True

    def went_back_to(self, checkpoint: Checkpoint) -> None:
        """A restore has brought this one's process back."""
        self._gone_back_to = checkpoint.id

    def cell_starts(self) -> None:
        """Leave the processor to the cell, unless there are enough."""
        if self._unsharing is not None and (os.cpu_count() or 1) < _CORES_TO_SPARE:
            frozen, self._unsharing = self._unsharing, None
            # any request ends the un-sharing
            self._session.background(self._session.engine.ping(frozen))

    def preparing_much(self) -> asyncio.Task[None] | None:
        """The upkeep that is under way, if the frozen process is to make much memory its own."""
        return self._task if self._much_is_hot else None

    @property
    def _much_is_hot(self) -> bool:
        head = self._session.timeline.head
        frozen = self._session.frozen.get(head.id) if head else None
        return frozen is not None and frozen.hot_bytes >= _MUCH

    async def stop(self) -> None:
        """End the round that runs."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task

    async def _rounds(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            if self.shortage:
                await self._keep_within()
            idle = await self._quiet_moment()
            await self._keep_within()
            # a stack of layers has an end: where cells never pause it is merged all the same
            if self._session.environment.is_deep(1 if idle else 2):
                await self._session.captures.tidy_environment()
            await self._session.deletion.by_rules()
            await self._session.deletion.by_size()
            if idle and self._session.router.idle and not self._again:
                await self._prepare()
                await self._keep_within()  # what was prepared takes memory too

    async def _quiet_moment(self) -> bool:
        """Wait until no cell has run for a moment; not for ever: the budget holds in a loop too."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _AT_LATEST_S
        quiet_since = loop.time()
        while loop.time() < end:
            quiet_s = _QUIET_MUCH_S if self._much_is_hot else _QUIET_S
            if not self._session.router.idle or self._again:
                self._again = False
                quiet_since = loop.time()
            elif loop.time() - quiet_since >= quiet_s:
                return True
            await asyncio.sleep(quiet_s / 2)
        return False

    async def measure(self, *, again: bool = False) -> None:
        """Measure some frozen processes: always the newest two, and those that hold more by now
        than when they were measured; the others in turn. again: after a moment in which nothing
        ran, only those that hold more."""
        first: list[Frozen] = []
        others: list[Frozen] = []
        held = list(self._session.frozen.items())
        newest = {id for id, _ in held[-2:] if not again}
        for id, frozen in held:
            if frozen.difference is not None:
                frozen.proportional_bytes = frozen.difference.bytes
            elif id in newest or id in self._stale or frozen.pid != frozen.measured_pid:
                first.append(frozen)
            elif not again:
                others.append(frozen)
        self._stale.clear()
        if others:
            self._turn %= len(others)
            others = others[self._turn :] + others[: self._turn]
        self._turn += await asyncio.to_thread(self._measure, first, others)

    def _measure(self, first: list[Frozen], others: list[Frozen]) -> int:
        """Return how many of the others there was time for."""
        proc = self._session.sandbox.proc
        end = time.monotonic() + _MEASURE_S
        executor = self._session.executor
        if executor is not None:
            rss, pss = set_sizes(proc(executor.pid))
            self._shared_with_live = rss - pss
        for count, frozen in enumerate([*first, *others], 1 - len(first)):
            frozen.measured_pid = frozen.pid
            frozen.proportional_bytes = held_bytes(proc(frozen.pid))
            if frozen.twin is not None:
                frozen.proportional_bytes += held_bytes(proc(frozen.twin.pid))
            if count > 0 and time.monotonic() > end:
                return count
        return len(others)

    async def _keep_within(self) -> None:
        """Bring what is held back within the budget, and within what the machine has."""
        await self.measure()
        budget, why = self.budget, self._over_budget
        if shortage := self.shortage:
            left = max(self._least, self.frozen_bytes - shortage)
            if left < budget:
                budget, why = left, "the machine had little memory left (memory_reserve)"
        is_first = not self._given_up
        # again, as what an evicted one shared with others they hold alone then
        while True:
            plan = plan_evictions(
                self._held(),
                budget_bytes=budget + self._shared_with_live,
                max_processes=min(self._session.config.max_processes, self._most_processes),
                **self._protected(),
            )
            if not plan.evict:
                break
            if budget < self.budget:
                self._given_up += len(plan.evict)
            if is_first and self.problem:
                is_first = False
                self._session.router.say_next(self.problem)
            await self._end(plan.evict, why)
            await self.measure(again=True)

    def _held(self) -> list[tuple[Checkpoint, int]]:
        timeline = self._session.timeline
        return [
            (timeline[id], frozen.proportional_bytes)
            for id, frozen in self._session.frozen.items()
            if id in timeline
        ]

    def _protected(self) -> dict[str, Any]:
        timeline = self._session.timeline
        return {
            "head": timeline.head.id if timeline.head else None,
            "last_safety": timeline.last_safety.id if timeline.last_safety else None,
            "due": self._session.durability.due,
        }

    async def _end(self, ids: Iterable[str], why: str) -> None:
        """End frozen processes; return when their memory is free."""
        session = self._session
        ending = []

        def has_process(id: str) -> bool:
            return id in session.frozen and session.frozen[id].difference is None

        # who needs another's process goes before it: else one of them would become a process first
        for id in sorted(ids, key=has_process):
            held = list(session.frozen)
            at = held.index(id) if id in held else 0
            self._stale.update(held[max(0, at - 1) : at + 2])
            if (frozen := session.frozen.get(id)) is not None and frozen.pid:
                ending.append(asyncio.ensure_future(session.sandbox.wait_exit(frozen.pid)))
            await session.captures.evict(id, why)
        if ending:
            _, late = await asyncio.wait(ending, timeout=_GONE_S)
            for one in late:
                one.cancel()

    async def _prepare(self) -> None:
        """Spend idle time so that the next cell or the next restore is fast."""
        session = self._session
        head = session.timeline.head
        frozen = session.frozen.get(head.id) if head else None
        if head is None or frozen is None or (os.cpu_count() or 1) < 2:
            return
        with contextlib.suppress(OSError):
            room = await self._room_for(head, frozen) if session.config.unshare else 0
            if 0 < frozen.hot_bytes <= room:
                self._unsharing = frozen
                regaining = asyncio.ensure_future(self._regain_meanwhile())
                made_own = 0
                try:
                    # a request to the frozen process ends it: it goes on behind that
                    while session.router.idle and (
                        more := await session.engine.unshare(frozen, room - made_own)
                    ):
                        made_own += more
                finally:
                    frozen.hot_bytes = max(0, frozen.hot_bytes - made_own)
                    self._unsharing = None
                    regaining.cancel()
                if made_own and session.router.idle and session.executor is not None:
                    session.executor.regain_huge_pages()
        if session.config.twins and not self.shortage:
            await self._prepare_twins()

    async def _regain_meanwhile(self) -> None:
        """Have what the frozen process has copied so far become huge pages again: with two cores
        both take the time of one."""
        while True:
            await asyncio.sleep(_REGAIN_S)
            if self._session.router.idle and self._session.executor is not None:
                with contextlib.suppress(OSError):
                    self._session.executor.regain_huge_pages()

    async def _room_for(self, head: Checkpoint, frozen: Frozen) -> int:
        """Make room for un-sharing; return the bytes that it may take.

        The oldest checkpoints that the disk holds too go: the next cell's writes would take their
        place anyway. Where that is not enough the oldest that the disk does not hold is written, if
        no cell runs meanwhile, and a round follows; or it goes, where it would go anyway.
        """
        size = frozen.hot_bytes
        # again, as what an evicted one shared with others they hold alone then
        while size > (room := self._room()) and size:
            held = self._held()
            total = sum(bytes for _, bytes in held)
            plan = plan_room(
                held,
                budget_bytes=total - (size - room),
                spared=head.parent,
                goes_anyway=_is_rewritten(frozen) and not self._waits_for_the_disk,
                **self._protected(),
            )
            if plan.write_first is not None:
                self._session.durability.before_it_goes(plan.write_first)
            if not plan.evict or not self._session.router.idle:
                break
            await self._end(plan.evict, self._over_budget)
            await self.measure(again=True)
        return room

    @property
    def _waits_for_the_disk(self) -> bool:
        """Whether the oldest checkpoint can be written at once. Without a notebook none is, and
        where one is being written cells are faster than the disk."""
        durability = self._session.durability
        return durability.writes_by_itself and not durability.due

    def _room(self) -> int:
        return min(self.budget - self.frozen_bytes, memory_available() - int(self.total * _RESERVE))

    async def _prepare_twins(self) -> None:
        """The likeliest targets: the head's parent (take the last cell back), the head, and where
        the last restore went (another try from there)."""
        session = self._session
        wanted = [checkpoint.id for checkpoint in session.timeline.present_branch()[-2:]]
        if self._gone_back_to is not None and self._gone_back_to not in wanted:
            wanted.append(self._gone_back_to)
        for id, frozen in list(session.frozen.items()):
            if id not in wanted and frozen.twin is not None:
                twin, frozen.twin = frozen.twin, None
                await session.engine.drop(twin)
        for id in wanted:
            target, executor = session.frozen.get(id), session.executor
            if target is not None and target.twin is None and executor and session.router.idle:
                with contextlib.suppress(OSError):
                    await session.engine.prepare_twin(target, executor.pid)


def _is_rewritten(frozen: Frozen) -> bool:
    """Whether two cells in a row have written most of what is hot: if the next one does, too, its
    checkpoint takes the place of the oldest."""
    return frozen.hot_bytes >= _MUCH and 2 * frozen.rewritten_bytes >= frozen.hot_bytes


def held_bytes(proc: str) -> int:
    """Return what a process takes: its part of the memory that it has mapped, and its page tables
    (VmPTE of proc_pid_status(5): no set size counts them, and a copy of 4 GB has 8 MB of them)."""
    with contextlib.suppress(OSError), open(f"{proc}/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmPTE:"):
                return set_sizes(proc)[1] + int(line.split()[1]) * 1024
    return 0  # it is gone


def set_sizes(proc: str) -> tuple[int, int]:
    """Return a process's resident and proportional set sizes in bytes; zeros if it is gone."""
    sizes = {b"Rss:": 0, b"Pss:": 0}
    try:
        with open(f"{proc}/smaps_rollup", "rb") as f:
            for line in f:
                fields = line.split()
                if fields[0] in sizes:
                    sizes[fields[0]] = int(fields[1]) * 1024
    except OSError:
        pass
    return sizes[b"Rss:"], sizes[b"Pss:"]
