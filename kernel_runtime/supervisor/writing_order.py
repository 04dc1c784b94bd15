"""Which checkpoint is written to the disk next, and when.

First what somebody has asked for; then, as the policy says, the present state and the newest
checkpoint, while those between are skipped where cells come faster; then, while no cell runs, one
whose process will have to make room.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

KIND: Final = "namespace"

_QUIET_S: Final = 0.5
"""Seconds without a cell that policy ``idle`` waits for."""

_LOOK_S: Final = 0.1
"""Seconds between two looks whether cells have paused."""

_SOON_S: Final = 0.02

_UNSHARED_S: Final = 4.0
"""Seconds that a copy waits at most for the frozen process to have made its own what the next cell
is likely to rewrite: as long as the copy reads, the live process would share it with that."""

_EMPTY: Final = ("start", "restart")
"""Reasons of checkpoints of a fresh process, which holds nothing."""


def is_written(checkpoint: Checkpoint) -> bool:
    """Whether its variables are on the disk."""
    capture = checkpoint.capture(KIND)
    return capture is not None and capture.state == "ready"


class WritingOrder:
    """What of one session waits to be written."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.asked: list[str] = []
        self.closed = False
        """Whether nothing is written any more."""
        self._newest: str | None = None
        self._present: str | None = None
        self._spare: str | None = None
        self._last = 0.0
        self._changed = asyncio.Event()
        self.is_ending = False
        """Whether the kernel ends."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self.asked or self._newest or self._present or self._spare)

    def add(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was made, labelled or pinned: note whether it is to be written."""
        if self._is_off or not self.can_read(checkpoint.id) or is_written(checkpoint):
            return
        if checkpoint.is_kept and checkpoint.reason != "safety":
            self.ask(checkpoint)
        elif self.writes_by_itself and checkpoint.reason == "part":
            self._present = checkpoint.id  # beside the safety checkpoint, the newest one
        elif self.writes_by_itself and checkpoint.reason not in _EMPTY:
            self._newest = checkpoint.id
            if checkpoint.reason != "safety":
                self._present = None
        self._changed.set()

    def add_present(self) -> None:
        """An older checkpoint is the present now: it is what the next kernel would go on from.

        It may have been skipped when it was made, as others came after it.
        """
        head = self._session.timeline.head
        if self._is_off or head is None:
            return
        if self.writes_by_itself and head.reason not in _EMPTY and not is_written(head):
            self._present = head.id
            self._changed.set()

    def add_before_it_goes(self, id: str) -> None:
        """Its process will have to make room for others."""
        if not self._is_off and not self.is_ending and self.writes_by_itself:
            self._spare = id
            self._changed.set()

    def ask(self, checkpoint: Checkpoint) -> None:
        """Have one written; what is being written now is not begun again: ready stays ready."""
        capture: Capture | None = checkpoint.capture(KIND)
        if checkpoint.id not in self.asked and (capture is None or capture.state != "pending"):
            self.asked.append(checkpoint.id)
            self._changed.set()

    def end_soon(self) -> None:
        """The kernel ends: what the policy wants is due now, the rest stays."""
        self._spare = None
        self.is_ending = True
        self._changed.set()

    def can_read(self, id: str) -> bool:
        """Whether its variables can be got from its process."""
        frozen = self._session.frozen.get(id)
        return frozen is not None and self._session.engine.can_read(frozen)

    async def next(self) -> str | None:
        """Wait until one is due; return its id, or None if there is none."""
        config = self._session.config
        while not self.closed:
            self._changed.clear()
            if self.asked:
                self._last = time.monotonic()
                return self.asked.pop()  # the newest: it is what a resume would take
            if self.is_empty:
                return None
            wait_s = self._last + config.durability_interval - time.monotonic()
            if self.is_ending:
                wait_s = 0.0  # all of them, one after the other
            by_policy = self._newest is not None or self._present is not None
            is_quiet = False
            if self._spare is not None or config.durability != "every":
                is_quiet = await self._is_quiet()
            if by_policy and wait_s <= 0 and (config.durability == "every" or is_quiet):
                id = self._take_by_policy()
                if id is not None and self._is_wanted(id):
                    await self._unshared()
                    if self._is_wanted(id):
                        self._last = time.monotonic()
                        return id
                continue
            if self._spare is not None and is_quiet:
                id, self._spare = self._spare, None
                if self._is_wanted(id):
                    return id
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                most_s = _LOOK_S if self._spare is not None else max(wait_s, _LOOK_S)
                await asyncio.wait_for(self._changed.wait(), most_s)
        return None

    def _take_by_policy(self) -> str | None:
        id = self._present or self._newest
        if self._present is not None:
            self._present = None
        else:
            self._newest = None
        return id

    def _is_wanted(self, id: str) -> bool:
        # under DMTCP the next checkpoint may have begun; or somebody has asked for it since
        timeline = self._session.timeline
        return self.can_read(id) and id in timeline and not is_written(timeline[id])

    async def _is_quiet(self) -> bool:
        end = time.monotonic() + _QUIET_S
        while time.monotonic() < end and not self.is_ending:
            if not self._session.router.idle:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _unshared(self) -> None:
        """As _UNSHARED_S says; a cell that starts ends the un-sharing, and the waiting."""
        preparing = self._session.memory.preparing_much()
        end = time.monotonic() + _UNSHARED_S
        while (
            preparing is not None
            and not (preparing.done() or self.is_ending or self.closed)
            and self._session.router.idle
            and time.monotonic() < end
        ):
            await asyncio.sleep(_SOON_S)

    @property
    def _is_off(self) -> bool:
        return self.closed or self._session.persistence.directory is None

    @property
    def writes_by_itself(self) -> bool:
        """Whether automatic checkpoints are written at all."""
        # the timeline of a kernel without a notebook ends with it: nobody could find it again
        session = self._session
        return session.config.durability != "manual" and session.persistence.has_document
