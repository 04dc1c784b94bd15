"""How much of the disk a notebook's checkpoints may take, kept to in the background.

What `jupyter timetravel prune --budget` does by hand. Weighing reads the lists of files of each
checkpoint, so it is done after some checkpoints or some time, in a thread, and least often where it
takes longest. With a budget of nobody's choice it is not done while the disk has not filled up by
as much as would bring all near it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.engines.charges import Needs, Stores
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor.config import AUTO
from kernel_runtime.timeline.retention import (
    RetentionPlan,
    RetentionRules,
    charging_order,
    plan_retention,
)
from kernel_runtime.timeline.text import plural, size_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_EACH: Final = 10
"""Checkpoints after which all are weighed again."""
_EVERY_S: Final = 60.0
_SHARE: Final = 0.05
"""Part of the time that weighing may take."""
_ANYHOW_S: Final = 600.0
"""Seconds after which all are weighed even if the disk has not filled up: what others deleted may
hide what was written."""
_OF_FREE: Final = 4
"""A budget of nobody's choice is one part in so many of the disk that is free without them."""
_LEAST: Final = 256 << 20
"""Bytes that such a budget is at least: a disk that others have filled is no reason to delete."""
_NEAR: Final = 0.9
"""Part of the budget from which a cell says how much there is."""


class Budget:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._weighed_at = 0.0
        self._took_s = 0.0
        self._number = -1
        self._free = self._free_now()
        """Bytes, when it was weighed last."""
        self._room = self._free
        """Bytes that were free at the start without these checkpoints."""
        self._was_near = False
        self.bytes: int | None = None
        """What the checkpoints took when they were weighed; None before that."""
        self.problem = ""
        """Said where what must stay takes more than the budget."""

    @property
    def limit(self) -> int:
        """Bytes that the checkpoints may take; 0: any number."""
        chosen = self._session.config.budget_bytes
        return max(_LEAST, self._room // _OF_FREE) if chosen == AUTO else int(chosen)

    def status(self) -> dict[str, Any]:
        """For the command ``status``."""
        return {
            "bytes": self.bytes,
            "budget_bytes": self.limit,
            "is_default": self._session.config.budget_bytes == AUTO,
        }

    @property
    def is_due(self) -> bool:
        """Whether it is time to weigh what there is."""
        timeline = self._session.timeline
        newest = max((c.number for c in timeline), default=-1)
        if not self.limit or newest == self._number:
            return False
        since = time.monotonic() - self._weighed_at
        if since < self._took_s / _SHARE:
            return False
        if newest < self._number + _EACH and since < _EVERY_S:
            return False
        if self._session.config.budget_bytes != AUTO or self.bytes is None or since >= _ANYHOW_S:
            return True
        written = max(0, self._free - self._free_now())
        return self.bytes + written >= self.limit * _NEAR

    async def weigh(self) -> dict[str, int] | None:
        """Bytes that are freed with each checkpoint, the oldest first; None if nobody can tell."""
        session = self._session
        directory, timeline = session.persistence.directory, session.timeline
        if directory is None:
            return None
        await session.persistence.written()
        order = [timeline[id] for id in charging_order(timeline)]
        layers = {one.id: session.environment.layers_of(one) for one in order}
        self._number = max((c.number for c in timeline), default=-1)
        started = time.monotonic()
        try:
            sizes = await asyncio.to_thread(
                lambda: Stores(directory).charges(order, lambda one: layers[one.id], Needs())
            )
        except (StoreError, OSError) as error:
            session.log.warning("What the checkpoints take could not be found out: %s", error)
            return None
        finally:
            self._weighed_at = time.monotonic()
            self._took_s = self._weighed_at - started
        self._free = self._free_now()
        total = sum(sizes.values())
        if self.bytes is None:
            self._room = self._free + total
        self.bytes = total
        return sizes

    def plan(self, sizes: Mapping[str, int]) -> RetentionPlan:
        """What has to go. Never the head, the last safety checkpoint, the newest, or what was asked
        for: if these alone take more, `problem` says so."""
        session = self._session
        rules = RetentionRules(budget_bytes=self.limit)
        return plan_retention(
            session.timeline, rules, sizes, now=session.now(), epoch=session.epoch
        )

    def tell(self, plan: RetentionPlan, gone: Sequence[int]) -> None:
        """Say in the next cell what was deleted, and how near the budget all is. gone: numbers."""
        self.bytes = plan.bytes_after
        before, self.problem = self.problem, ""
        was_near, self._was_near = self._was_near, plan.bytes_after >= self.limit * _NEAR
        takes = f"{size_text(plan.bytes_after)} of the {size_text(self.limit)}"
        if not plan.fits:
            self.problem = (
                "What must stay of this notebook's checkpoints takes "
                f"{size_text(plan.bytes_after)}, more than budget_bytes allows "
                f"({size_text(self.limit)}): what was asked for, labelled or pinned is never "
                "deleted for its size. %checkpoint --delete takes one out; "
                "%timetravel config budget_bytes=… allows more."
            )
            if not before:
                self._session.log.warning("%s", self.problem)
                self._session.router.say_next(self.problem)
        if gone:
            which = f"#{gone[0]}" if len(gone) == 1 else f"#{gone[0]} to #{gone[-1]}"
            self._session.router.say_next(
                f"{plural(len(gone), 'automatic checkpoint')} ({which}) "
                f"{'was' if len(gone) == 1 else 'were'} deleted: this notebook's checkpoints took "
                f"more than the {size_text(self.limit)} that budget_bytes allows. What is "
                "labelled, pinned or made by hand stays; %timetravel config budget_bytes=… "
                "allows more."
            )
        elif plan.fits and self._was_near and not was_near:
            self._session.router.say_next(
                f"this notebook's checkpoints take {takes} that budget_bytes allows. Beyond it "
                "the oldest automatic ones are deleted: label or pin those that are to stay, or "
                "allow more with %timetravel config budget_bytes=…"
            )

    def _free_now(self) -> int:
        """Bytes that are free where the store is; 0 without one."""
        directory = self._session.persistence.directory
        try:
            return shutil.disk_usage(directory).free if directory is not None else 0
        except OSError:
            return 0
