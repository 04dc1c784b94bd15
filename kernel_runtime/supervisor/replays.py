"""Replays: back to a checkpoint, then the cells that had run after it, once more and in order."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernel_runtime.errors import BadRequest, RestoreRefused
from kernel_runtime.later import dataclass
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.cells import Placed, difference, effect_record, runnable
from kernel_runtime.timeline.cells_report import replay_step_text, replay_text
from kernel_runtime.timeline.model import Checkpoint, first_line
from kernel_runtime.timeline.names import Spec

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_RANGE = re.compile(r"#?(\d+)-#?(\d+)")


@dataclass
class ReplayPlan:
    """What a replay will do, checked."""

    target: Checkpoint
    cells: list[Placed]
    stop_on_difference: bool


class Replayer:
    """Replays of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.running = False

    def plan(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        *,
        asker: Request | None = None,
    ) -> ReplayPlan:
        """Find the cells. Raises BadRequest, UnknownCheckpoint or RestoreRefused.

        skip: numbers or names of the checkpoints that hold the cells to leave out, or ranges
        ("15-17") of numbers.
        """
        session = self._session
        timeline = session.timeline
        target = timeline.resolve(checkpoint)
        end = timeline.resolve(until) if until is not None else None
        session.restores.check_memory(target)
        skipped = self._skipped(skip)
        found = [
            Placed(replace(placed.cell, source=source), placed.checkpoint)
            for placed in session.cells.since(target, end)
            if placed.cell.kind == "cell"
            and (asker is None or placed.cell.id != asker.id)
            and (placed.checkpoint is None or placed.checkpoint.id not in skipped)
            and (source := runnable(placed.cell.source)).strip()
        ]
        if not found:
            where = f"up to #{end.number}" if end else "on the present branch"
            raise BadRequest(
                f"There are no cells to run again since #{target.number} {where}. Nothing was "
                "done; --until N names the end of the branch that is meant."
            )
        return ReplayPlan(target, found, stop_on_difference)

    def _skipped(self, skip: Sequence[Spec]) -> set[str]:
        timeline = self._session.timeline
        found: set[str] = set()
        for spec in skip:
            if match := _RANGE.fullmatch(str(spec)):
                first, last = int(match[1]), int(match[2])
                found |= {c.id for c in timeline if first <= c.number <= last}
            else:
                found.add(timeline.resolve(spec).id)
        return found

    def dry_run(self, plan: ReplayPlan) -> dict[str, Any]:
        """Tell what would run."""
        return self._result(plan, None, [], None, time.monotonic(), dry_run=True)

    async def run(self, plan: ReplayPlan, asker: Request | None) -> dict[str, Any]:
        """Restore and run. Raises what a restore raises, and then nothing was run.

        The caller holds the queue. asker: the cell that asks, which has ended.
        """
        self.running = True
        try:
            return await self._run(plan, asker)
        finally:
            self.running = False

    async def _run(self, plan: ReplayPlan, asker: Request | None) -> dict[str, Any]:
        session = self._session
        started = time.monotonic()
        asked = RestoreRequest(force=True)
        restored = await session.restores.restore(plan.target, asked, request=asker)
        session.inner.interrupted = False
        steps: list[dict[str, Any]] = []
        stopped: str | None = None
        for number, placed in enumerate(plan.cells, 1):
            session.events.publish(
                "replay_progress",
                checkpoint={"id": plan.target.id, "number": plan.target.number},
                step=number,
                of=len(plan.cells),
                cell=placed.name,
                code=first_line(placed.cell.source),
            )
            head = replay_step_text(number, len(plan.cells), placed)
            session.router.say(head + "\n", asker.message if asker else None)
            step, died = await self._step(placed, asker)
            steps.append(step)
            if died:
                stopped = "died"
            elif session.inner.interrupted:
                stopped = "interrupted"
            elif plan.stop_on_difference and step["difference"] is not None:
                stopped = "difference"
            if stopped is not None:
                break
        result = self._result(plan, restored, steps, stopped, started)
        session.events.publish("replay_finished", **result)
        return result

    async def _step(self, placed: Placed, asker: Request | None) -> tuple[dict[str, Any], bool]:
        """Run one cell and take its checkpoint; say whether the process died of it."""
        session = self._session
        executor = session.executor
        request = await session.inner.run(placed.cell.source, asker, cell_id=placed.cell.cell_id)
        died = executor is None or session.executor is not executor or not executor.alive
        async with session.lock:
            pass  # what recovers a process that died has it
        again = session.cells.newest
        if executor is not None:
            executor.exit_asked = False  # the replay goes on in this process
        if not died and executor is not None and session.checkpoints.wanted_after(request):
            session.router.hold("checkpoint")  # which it releases
            await session.checkpoints.after_cell(request, executor)
        reply = request.reply or {}
        head = session.timeline.head
        step = {
            **_row(placed),
            "outcome": str(reply.get("status", "aborted")) if not died else "aborted",
            "ename": reply.get("ename"),
            "difference": "the process died"
            if died or again is None
            else difference(placed.cell, again),
            "checkpoint": head.number if head is not None else None,
        }
        return step, died

    def _result(
        self,
        plan: ReplayPlan,
        restored: dict[str, Any] | None,
        steps: list[dict[str, Any]],
        stopped: str | None,
        started: float,
        *,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        rest = plan.cells[len(steps) :]
        effects = [
            effect_record(effect, placed) for placed in plan.cells for effect in placed.cell.effects
        ]
        result: dict[str, Any] = {
            "checkpoint": self._session.timeline.record(plan.target),
            "restored": restored,
            "cells": steps,
            "not_run": [_row(placed) for placed in rest],
            "effects": effects,
            "stopped": stopped,
            "dry_run": dry_run,
            "took_ms": (time.monotonic() - started) * 1e3,
        }
        result["text"] = replay_text(result)
        return result

    def refuse_while_running(self, command: str) -> None:
        """Raise RestoreRefused where a command would pull the session from under a replay."""
        if self.running:
            raise RestoreRefused(
                f"A replay is running, so {command} was not begun. Nothing was changed; interrupt "
                "the replay or wait for its end."
            )


def _row(placed: Placed) -> dict[str, Any]:
    return {
        "cell": placed.name,
        "cell_id": placed.cell.cell_id,
        "code": first_line(placed.cell.source),
        "source": placed.cell.source,
        "before": placed.cell.failed_as,
    }
