"""Running the undos that cells have registered, before a restore goes back over those cells.

They run in the present process, newest first, before anything is restored: that process has the
functions, and when one fails the session is simply not restored. One that went well is never run
again, wherever the session goes: the timeline remembers it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kernel_runtime.errors import RestoreRefused
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.cells import Cell, Compensation, Placed
from kernel_runtime.timeline.model import Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_OUTCOMES = {"ok": "ok", "error": "error", "aborted": "gone"}
_GONE = "the process that had its function has ended"


class Compensations:
    """The undos of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(self, target: Checkpoint, asker: Request | None) -> None:
        """Run those of the cells that going to ``target`` takes back.

        The caller holds the queue, and no cell runs but ``asker``, which has ended. Raises
        RestoreRefused at the first that fails: then nothing was restored.
        """
        session = self._session
        wanted = [
            one
            for placed in reversed(session.cells.left_behind(target))
            for one in reversed(placed.cell.compensations)
            if not self._is_done(one)
        ]
        known = await self._known(wanted)
        session.inner.interrupted = False
        done = 0
        for one in wanted:
            if one.id not in known:
                self._note(one, "aborted", _GONE, time.time(), 0.0)
                continue
            if session.inner.interrupted:
                self._refuse(one, "it was interrupted before", done)
            started_at, started = time.time(), time.monotonic()
            code = f"get_ipython().kernel.timetravel.compensations.run({one.id!r})"
            request = await session.inner.run(code, asker, is_cell=False)
            reply = request.reply or {}
            took = time.monotonic() - started
            if reply.get("status") == "ok":
                done += 1
                self._note(one, "ok", None, started_at, took)
                continue
            error = f"{reply.get('ename')}: {reply.get('evalue')}"
            self._note(one, "error", error, started_at, took)
            self._refuse(one, error, done)

    def _refuse(self, one: Compensation, error: str, done: int) -> None:
        before = f" {done} that had run before it went well and will not run again." if done else ""
        raise RestoreRefused(
            f"The compensation {one.text} failed ({error}), so nothing was restored.{before} Put "
            "its cause right and ask again, or restore without --compensate."
        )

    async def _known(self, wanted: list[Compensation]) -> set[str]:
        executor = self._session.executor
        if not wanted or executor is None or not executor.alive:
            return set()
        try:
            return set(await executor.compensations([one.id for one in wanted]))
        except ConnectionError:
            return set()

    def _note(
        self, one: Compensation, outcome: Any, error: str | None, at: float, took_s: float
    ) -> None:
        head = self._session.timeline.head
        self._session.cells.add(
            Cell(
                id=one.id,
                source=one.text,
                cell_id=None,
                execution_count=0,
                outcome=outcome,
                ename=None,
                started_at=at,
                duration_s=took_s,
                before=head.id if head is not None else None,
                result=error,
                kind="compensation",
            )
        )

    def _records(self) -> list[Cell]:
        """Of all compensations that were tried, in any branch, oldest first."""
        session = self._session
        stored = [cell for checkpoint in session.timeline for cell in checkpoint.cells]
        waiting = [placed.cell for placed in session.cells.waiting]
        return [cell for cell in stored + waiting if cell.kind == "compensation"]

    def _is_done(self, one: Compensation) -> bool:
        return any(cell.id == one.id and cell.outcome == "ok" for cell in self._records())

    def told(self, left: list[Placed]) -> list[dict[str, Any]]:
        """The compensations of these cells, newest first, with how each went."""
        found = [
            (placed, one)
            for placed in reversed(left)
            for one in reversed(placed.cell.compensations)
        ]
        if not found:
            return []
        records: dict[str, Cell] = {}
        for cell in self._records():
            if cell.id not in records or records[cell.id].outcome != "ok":
                records[cell.id] = cell
        told = []
        for placed, one in found:
            known = records.get(one.id)
            outcome = _OUTCOMES[known.outcome] if known is not None else "not run"
            error = known.result if known is not None else None
            row = {"id": one.id, "text": one.text, "cell": placed.name}
            told.append({**row, "outcome": outcome, "error": error})
        return told
