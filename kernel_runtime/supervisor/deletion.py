"""Deleting checkpoints: those that the user names, and automatic ones that retention takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.supervisor.budget import Budget
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.retention import RetentionRules, plan_retention

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_SLACK = 1.1
"""How far beyond the rules a timeline may grow: pruning one at a time would cost each cell."""


class Deletion:
    """Takes checkpoints out of one session's timeline, and what only they need off the disk."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.budget = Budget(session)

    async def delete(self, id: str) -> dict[str, Any]:
        """Delete one; return its record. Raises DeleteRefused."""
        session = self._session
        async with session.lock:
            found = session.timeline[id]
            record = session.timeline.record(found)
            await self._take_out(found)
        self._tidy()
        return record

    async def by_rules(self) -> None:
        """Delete the automatic checkpoints that no rule keeps, once there are many of them."""
        session = self._session
        config = session.config
        if not config.keep_last or len(session.timeline) <= config.keep_last * _SLACK:
            return
        rules = RetentionRules(
            keep_last=config.keep_last, hourly=config.keep_hourly, daily=config.keep_daily
        )
        async with session.lock:
            plan = plan_retention(session.timeline, rules, now=session.now(), epoch=session.epoch)
            await self._take_all(session.timeline[id] for id in plan.delete)
        if plan.delete:
            self._tidy()

    async def by_size(self) -> None:
        """Delete the oldest automatic checkpoints while all take more than the budget."""
        session = self._session
        if not self.budget.is_due:
            return
        sizes = await self.budget.weigh()
        if sizes is None:
            return
        async with session.lock:
            plan = self.budget.plan(sizes)
            gone = [session.timeline[id] for id in plan.delete]
            await self._take_all(gone)
        self.budget.tell(plan, [one.number for one in gone])
        if plan.delete:
            session.background(session.files.sweep())
            self._tidy()

    async def _take_all(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            await self._take_out(checkpoint)

    async def _take_out(self, checkpoint: Checkpoint) -> None:
        """The caller holds the session's lock. Raises DeleteRefused."""
        session = self._session
        gone = session.timeline.delete(checkpoint.id)
        frozen = session.frozen.pop(checkpoint.id, None)
        session.persistence.delete(session.timeline, gone)
        if frozen is not None:
            await session.engine.drop(frozen)
        for capture in checkpoint.captures:
            is_snapshot = capture.kind == "filesystem" and capture.engine != "overlay"
            if is_snapshot and capture.ref and not await self._is_named(capture.ref):
                with contextlib.suppress(WorkspaceError, OSError):
                    await session.files.release([capture.ref])
        session.events.publish("checkpoint_deleted", id=checkpoint.id, number=checkpoint.number)

    async def _is_named(self, snapshot: str) -> bool:
        return await self._session.persistence.names_snapshot(snapshot)

    def _tidy(self) -> None:
        session = self._session
        session.background(session.captures.tidy_environment())
        session.captures.tidy_commits()
        session.background(session.durability.sweep())
        session.background(session.images.sweep())
        session.background(session.under_dmtcp.sweep())
