"""The commands of docs/protocol.md that tell of a session and keep its timeline in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.cells import Placed
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.variables import diff as diff_variables
from kernel_runtime.timeline.variables import diff_environ, public_variables

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


class TimelineCommands:
    """One coroutine each, its parameters are the command's arguments."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def do_status(self) -> dict[str, Any]:
        session = self._session
        head = session.timeline.head
        memory = session.memory
        await memory.measure()
        document = session.persistence.document
        return {
            "timeline": session.timeline.id,
            "notebook": document.path if document is not None else None,
            "kernel_name": session.config.kernel_name,
            "head": session.timeline.record(head) if head else None,
            "busy": not session.router.idle,
            "ending": session.is_ending,
            "config": session.config.live_options(),
            "memory": {"frozen_bytes": memory.frozen_bytes, "budget_bytes": memory.budget},
            "store": {**session.persistence.status(), **session.deletion.budget.status()},
            "engines": {
                "process": session.engine.name,
                "filesystem": "workspace" if session.files.enabled else None,
                "sandbox": session.sandbox.name,
            },
            "workspace": [str(root) for root in session.files.roots],
            "environment": session.environment.status(),
            "limits": [
                *session.limits,
                *filter(
                    None,
                    (
                        session.files.problem,
                        session.persistence.problem,
                        session.deletion.budget.problem,
                        memory.problem,
                    ),
                ),
            ],
            "counts": {
                "checkpoints": len(session.timeline),
                "frozen": len(session.frozen),
                "twins": sum(f.twin is not None for f in session.frozen.values()),
            },
            "last_cow_tax_ms": memory.last_cow_tax_ms,
        }

    async def do_list(
        self, include_auto: bool = True, history: Spec | None = None
    ) -> dict[str, Any]:
        timeline = self._session.timeline
        checkpoints: list[Checkpoint] = list(timeline)
        if history is not None:
            newest = timeline.resolve(history)
            wanted = {*timeline.history(newest.id), newest.id}
            checkpoints = [c for c in checkpoints if c.id in wanted]
        if not include_auto:
            checkpoints = [c for c in checkpoints if not c.is_auto]
        return {
            "checkpoints": [timeline.record(c, history=False) for c in checkpoints],
            "parents": timeline.parents(),
            "head": timeline.head.id if timeline.head else None,
        }

    async def do_get(self, checkpoint: Spec) -> dict[str, Any]:
        timeline = self._session.timeline
        found = timeline.resolve(checkpoint)
        return {
            "checkpoint": timeline.record(found),
            "variables": public_variables(found.variables),
            "cells": [Placed(cell, found).record(output=True) for cell in found.cells],
        }

    async def do_diff(self, a: Spec, b: Spec | None = None) -> dict[str, Any]:
        session = self._session
        first = session.timeline.resolve(a)
        second = session.timeline.resolve(b) if b is not None else None
        after = second.variables if second else await session.present_variables()
        variables = diff_variables(first.variables, after)
        files: list[dict[str, Any]] = []
        refs = [_snapshot(first), _snapshot(second) if second else None]
        if refs[0] and (refs[1] or second is None):
            async with session.lock:
                changes = await session.files.diff(refs[0], refs[1])
            files = [session.files.as_json(change) for change in changes]
        before = first.capture("filesystem", engine="overlay")
        now = second.capture("filesystem", engine="overlay") if second is not None else None
        found: dict[str, Any] = {"files": [], "workspace": [], "packages": [], "complete": True}
        if before is not None and (second is None or now is not None):
            found = await session.environment_changes.compare(before, now)
        return {
            "variables": variables,
            "files": [*files, *found["workspace"]],
            "environment": found["files"],
            "environment_complete": found["complete"],
            "packages": found["packages"],
            "environ": diff_environ(first.variables, after),
        }

    async def do_cells(
        self, since: Spec | None = None, until: Spec | None = None
    ) -> dict[str, Any]:
        session = self._session
        end = session.timeline.resolve(until) if until is not None else None
        if since is not None:
            found = session.cells.since(session.timeline.resolve(since), end)
        else:
            found = session.cells.from_fresh(end)
        return {"cells": [placed.record() for placed in found]}

    async def do_verify(self, checkpoint: Spec | None = None) -> dict[str, Any]:
        timeline = self._session.timeline
        if checkpoint is not None:
            return await self._session.portable.verify([timeline.resolve(checkpoint)])
        durable = [c for c in timeline if c.has_durable_session]
        return await self._session.portable.verify(durable)

    async def do_label(self, checkpoint: Spec, label: str | None) -> dict[str, Any]:
        found = self._session.timeline.resolve(checkpoint)
        return self._changed(self._session.timeline.replace(found.id, label=label).id)

    async def do_comment(self, checkpoint: Spec, comment: str) -> dict[str, Any]:
        found = self._session.timeline.resolve(checkpoint)
        comment = comment if comment.strip() else ""
        return self._changed(self._session.timeline.replace(found.id, comment=comment).id)

    async def do_pin(self, checkpoint: Spec, pinned: bool = True) -> dict[str, Any]:
        found = self._session.timeline.resolve(checkpoint)
        return self._changed(self._session.timeline.replace(found.id, pinned=pinned).id)

    def _changed(self, id: str) -> dict[str, Any]:
        session = self._session
        session.captures.save_changed(id)
        session.durability.after_checkpoint(session.timeline[id])
        return {"checkpoint": session.timeline.record(session.timeline[id])}

    async def do_delete(self, checkpoint: Spec) -> dict[str, Any]:
        found = self._session.timeline.resolve(checkpoint)
        return {"deleted": await self._session.deletion.delete(found.id)}

    async def do_config(self, set: dict[str, Any] | None = None) -> dict[str, Any]:
        config = self._session.config
        if (set or {}).get("children") == "capture" and (
            why := await self._session.trees.why_not()
        ):
            raise BadRequest(
                f"children cannot be capture: {why}. Nothing was changed; `jupyter timetravel "
                "doctor` says what this machine can do."
            )
        config.change(set or {})
        return {"config": config.live_options()}

    async def do_subscribe(self, events: bool = True) -> dict[str, Any]:
        self._session.events.wanted = bool(events)
        return {"events": bool(events)}

    async def do_hold(
        self, lease: str, seconds: float, wait: float = 0.0, renew: bool = False
    ) -> dict[str, Any]:
        return await self._session.holding.hold(lease, seconds, wait, renew)

    async def do_release(self, lease: str) -> dict[str, Any]:
        return {"released": self._session.holding.release(lease)}

    async def do_tell(self, group: str, text: str, state: dict[str, Any]) -> dict[str, Any]:
        self._session.events.publish("group_changed", group=group, text=text, state=state)
        if text:
            self._session.router.say_next(text)
        return {"told": True}


def _snapshot(checkpoint: Checkpoint | None) -> str | None:
    capture = checkpoint.capture("filesystem", engine="workspace") if checkpoint else None
    return capture.ref if capture is not None and capture.state == "ready" else None
