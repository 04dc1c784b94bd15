"""How much of the disk a notebook's checkpoints may take, kept to in the background.

What `jupyter timetravel prune --budget` does by hand. Weighing reads the lists of files of each
checkpoint, so it is done after some checkpoints or some time, in a thread, and least often where it
takes longest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kernel_runtime.engines.charges import Needs, Stores
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.retention import (
    RetentionPlan,
    RetentionRules,
    charging_order,
    plan_retention,
)
from kernel_runtime.timeline.text import size_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_EACH: Final = 10
"""Checkpoints after which all are weighed again."""
_EVERY_S: Final = 60.0
_SHARE: Final = 0.05
"""Part of the time that weighing may take."""


class Budget:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._weighed_at = 0.0
        self._took_s = 0.0
        self._number = -1
        self.problem = ""
        """Said where what must stay takes more than the budget."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to weigh what there is."""
        timeline = self._session.timeline
        newest = max((c.number for c in timeline), default=-1)
        if not self._session.config.budget_bytes or newest == self._number:
            return False
        since = time.monotonic() - self._weighed_at
        if since < self._took_s / _SHARE:
            return False
        return newest >= self._number + _EACH or since >= _EVERY_S

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
            return await asyncio.to_thread(
                lambda: Stores(directory).charges(order, lambda one: layers[one.id], Needs())
            )
        except (StoreError, OSError) as error:
            session.log.warning("What the checkpoints take could not be found out: %s", error)
            return None
        finally:
            self._weighed_at = time.monotonic()
            self._took_s = self._weighed_at - started

    def plan(self, sizes: Mapping[str, int]) -> RetentionPlan:
        """What has to go. Never the head, the last safety checkpoint, the newest, or what was asked
        for: if these alone take more, `problem` says so."""
        session = self._session
        rules = RetentionRules(budget_bytes=session.config.budget_bytes)
        plan = plan_retention(
            session.timeline, rules, sizes, now=session.now(), epoch=session.epoch
        )
        self._tell(plan)
        return plan

    def _tell(self, plan: RetentionPlan) -> None:
        before, self.problem = self.problem, ""
        if plan.fits:
            return
        self.problem = (
            f"What must stay of this notebook's checkpoints takes {size_text(plan.bytes_after)}, "
            f"more than budget_bytes allows ({size_text(self._session.config.budget_bytes)}): what "
            "was asked for, labelled or pinned is never deleted for its size. %checkpoint --delete "
            "takes one out; %timetravel config budget_bytes=… allows more."
        )
        if not before:
            self._session.log.warning("%s", self.problem)
