"""Several cells as alternatives from one checkpoint, of which one is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import anyio

from jupyter_timetravel import commands
from jupyter_timetravel.access.session import Access
from jupyter_timetravel.agent_server.cells import Cell
from jupyter_timetravel.agent_server.kernels import Kernel
from kernel_runtime.errors import BadRequest, TimeTravelError
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.report import diff_text, title
from kernel_runtime.timeline.text import one_line

Keep = Literal["none", "first_ok", "highest", "lowest"]
RESTORE_S: Final = 120.0


async def run_cell(kernel: Kernel, code: str, seconds: float) -> tuple[Cell, dict[str, Any]]:
    """Send a cell and wait; its record, with its checkpoint if it ended. Needs the turn."""
    cell = kernel.send(code)
    await kernel.wait(cell, seconds)
    return cell, await told_of(kernel, cell)


async def told_of(kernel: Kernel, cell: Cell) -> dict[str, Any]:
    """The record of a cell: ``checkpoint`` holds the state after it, ``head`` is the session's."""
    record = {**cell.record(), "checkpoint": None, "head": None, "effects": []}
    if not cell.ended:
        return record

    def look(access: Access) -> None:
        head = access.ask(commands.status())["head"]
        if head is None:
            return
        # with it the automatic checkpoint that is being made is waited for
        found = access.ask(commands.get(-1))
        record["head"] = found["checkpoint"]["number"]
        if not any(one["id"] == cell.id for one in found["cells"]):
            ids = [
                one["id"]
                for one in access.ask(commands.list_checkpoints())["checkpoints"]
                if one["coordinate"]["msg_id"] == cell.id and one["reason"] == "cell"
            ]
            if not ids:
                return  # automatic checkpoints are off, or it was refused
            found = access.ask(commands.get(ids[-1]))
        record["checkpoint"] = found["checkpoint"]["number"]
        record["effects"] = [
            effect for one in found["cells"] if one["id"] == cell.id for effect in one["effects"]
        ]

    await kernel.look(look)
    return record


class Alternatives:
    """Tries them on one kernel; the caller has the turn."""

    def __init__(
        self,
        kernel: Kernel,
        cells: Sequence[str],
        keep: Keep | int,
        score: str | None,
        seconds: float,
    ) -> None:
        """Raises BadRequest."""
        self._kernel = kernel
        self._cells = list(cells)
        self._keep = keep
        self._score = score
        self._seconds = seconds
        if not self._cells:
            raise BadRequest("There are no cells to try. Nothing was done.")
        if keep in ("highest", "lowest") and score is None:
            raise BadRequest(f"keep={keep!r} needs a score to compare. Nothing was done.")
        if isinstance(keep, int) and not 1 <= keep <= len(self._cells):
            raise BadRequest(
                f"There are {len(self._cells)} cells, so keep cannot be {keep}. Nothing was done."
            )

    async def run(self, checkpoint: Spec | None) -> dict[str, Any]:
        """All of them, each from the same state. The session is at the one that is kept then.

        Raises TimeTravelError; the session is back where the alternatives begin then, if it can.
        """
        ask, before = self._kernel.ask, None
        if checkpoint is None:
            made = await ask(commands.checkpoint("before alternatives"))
            base = made["checkpoint"]
        else:
            base = (await ask(commands.get(checkpoint)))["checkpoint"]
            before = await self._go_to(base["id"])
        self._kernel.trying = True
        try:
            tried = []
            for number, code in enumerate(self._cells, 1):
                if number > 1:
                    await self._go_to(base["id"])
                tried.append(await self._try(number, code, base))
            kept = self._chosen(tried)
            target = base["id"] if kept is None else tried[kept - 1]["checkpoint"]
            await self._go_to(target)
            head = (await ask(commands.status()))["head"]
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._back(base)
            raise
        finally:
            self._kernel.trying = False
        return {
            "base": base["number"],
            "before": base["number"] if before is None else before,
            "alternatives": tried,
            "kept": kept,
            "head": head["number"] if head else None,
        }

    async def _try(self, number: int, code: str, base: dict[str, Any]) -> dict[str, Any]:
        cell, record = await run_cell(self._kernel, code, self._seconds)
        if not cell.ended:
            await self._kernel.interrupt()
            await self._kernel.wait(cell, 5.0)
            record = {**await told_of(self._kernel, cell), "outcome": "timed out"}
        score, problem = None, None
        if cell.ended and record["outcome"] == "ok" and self._score is not None:
            try:
                score = await self._score_of(self._score)
            except BadRequest as error:
                problem = str(error)
        if cell.ended and record["checkpoint"] is None:
            comment = f"alternative {number}"
            made = await self._kernel.ask(commands.checkpoint(comment))
            record["checkpoint"] = made["checkpoint"]["number"]
        changes = None
        if record["checkpoint"] is not None:
            at = record["checkpoint"]
            found = await self._kernel.ask(commands.diff(base["id"], at))
            changes = diff_text(title(base), f"#{at}", found)
        return {
            **record,
            "number": number,
            "code": code,
            "score": score,
            "score_problem": problem,
            "changes": changes,
        }

    async def _score_of(self, expression: str) -> float:
        value = float(await self._kernel.evaluate(f"float({expression})", self._seconds))
        if math.isnan(value):
            raise BadRequest(f"{one_line(expression, 60)} is not a number.")
        return value

    def _chosen(self, tried: Sequence[dict[str, Any]]) -> int | None:
        """The number of the one that is kept; None: none."""
        good = [one for one in tried if one["outcome"] == "ok" and one["checkpoint"] is not None]
        if isinstance(self._keep, int):
            return self._keep if tried[self._keep - 1] in good else None
        if self._keep == "first_ok":
            return int(good[0]["number"]) if good else None
        if self._keep == "none" or not good:
            return None
        scored = [one for one in good if one["score"] is not None]
        if not scored:
            return None
        best = max if self._keep == "highest" else min
        return int(best(scored, key=lambda one: one["score"])["number"])

    async def _go_to(self, checkpoint: Spec) -> int | None:
        """Restore; return the number of the checkpoint that holds what was there before."""
        asked = RestoreRequest(checkpoint, force=True)
        done = await self._kernel.ask(commands.restore(asked), RESTORE_S)
        return done["safety"]["number"] if done["safety"] else None

    async def _back(self, base: dict[str, Any]) -> None:
        try:
            await self._go_to(base["id"])
        except TimeTravelError:
            return  # the error that is on its way says more
