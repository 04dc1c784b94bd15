"""The cells that have run since the newest checkpoint: kept until the next one takes them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.overlay.plan import HOST_PATHS
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.cells import (
    RESULT_LENGTH,
    Cell,
    Placed,
    along,
    from_fresh,
    left_behind,
    with_effects,
)
from kernel_runtime.timeline.model import Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.executors import Executor
    from kernel_runtime.supervisor.session import Session


def _plain(text: str) -> str:
    """Without what no store and no export holds: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Cells:
    """Notes of one session what ran in it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: list[Cell] = []
        self._before: str | None = None
        self._started_at = 0.0
        self._started = 0.0
        self.newest: Cell | None = None
        """The one that ended last."""

    # What happens

    def starts(self) -> None:
        """The executor is about to be given a request."""
        head = self._session.timeline.head
        self._before = head.id if head is not None else None
        self._started_at, self._started = time.time(), time.monotonic()

    def ended(self, request: Request | None, *, lost: bool = False) -> None:
        """A request is done; note it if it was a cell. lost: its process was ended meanwhile."""
        if request is None or not (request.is_cell and request.content.get("store_history", True)):
            return
        reply = request.reply or {}
        failed = lost or reply.get("status") != "ok"
        cell = Cell(
            id=request.id,
            source=request.code,
            cell_id=request.cell_id,
            execution_count=request.input_published or int(reply.get("execution_count") or 0),
            outcome="aborted" if lost else "error" if failed else "ok",
            ename=None if lost or not failed else str(reply.get("ename") or "error"),
            started_at=self._started_at,
            duration_s=time.monotonic() - self._started,
            before=self._before,
            result=request.result[:RESULT_LENGTH] if request.result is not None else None,
            output=_plain("".join(request.output)),
        )
        if request.leaving:
            cell = replace(cell, outcome="ok", ename=None)
        self._waiting.append(cell)
        self.newest = cell

    def add(self, cell: Cell) -> None:
        """Note what is no request of a client's."""
        self._waiting.append(cell)

    def on_effects(self, report: dict[str, Any]) -> None:
        """The executor tells what a cell did; of one from another time it is not heard."""
        for position in reversed(range(len(self._waiting))):
            # cells of one replay have the id of the cell that asked: it is the newest
            if self._waiting[position].id == report["cell"]:
                self._waiting[position] = with_effects(self._waiting[position], report)
                return

    def take(self) -> tuple[Cell, ...]:
        """Give the cells to the checkpoint that is being made."""
        taken, self._waiting = tuple(self._waiting), []
        return taken

    def forget(self) -> None:
        """The session has gone back to before them."""
        self._waiting = []

    def tell_trees(self, executor: Executor) -> None:
        """Let an executor know which files go back with a restore: the others are effects."""
        session = self._session
        environment = session.environment.status()
        held = list(environment["covered"])
        not_held = [*HOST_PATHS, *environment["not_covered"]]
        roots = [str(root) for root in session.files.roots]
        (held if session.files.enabled or session.config.is_isolated else not_held).extend(roots)
        executor.link.command(
            "effects", held=held, not_held=not_held, otherwise=session.environment.enabled
        )

    # What ran

    @property
    def waiting(self) -> list[Placed]:
        """Those that no checkpoint holds yet."""
        return [Placed(cell, None) for cell in self._waiting]

    def since(self, target: Checkpoint, until: Checkpoint | None) -> list[Placed]:
        """Those after ``target`` up to ``until``, or to the present. Raises BadRequest."""
        timeline = self._session.timeline
        found = list(along(timeline, target.id, until.id if until else timeline.state.head))
        return found if until is not None else found + self.waiting

    def from_fresh(self, until: Checkpoint | None) -> list[Placed]:
        """Those that lead from a fresh process to ``until``, or to the present."""
        timeline = self._session.timeline
        if until is not None:
            return from_fresh(timeline, until.id)
        return from_fresh(timeline, timeline.state.head) + self.waiting

    def left_behind(self, target: Checkpoint, at: Checkpoint | None = None) -> list[Placed]:
        """Those that going to ``target`` takes back, from ``at`` or from the present."""
        timeline = self._session.timeline
        if at is not None:
            return left_behind(timeline, at.id, target.id)
        return left_behind(timeline, timeline.state.head, target.id) + self.waiting
