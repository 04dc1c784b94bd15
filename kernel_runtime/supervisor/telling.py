"""What is told of a restore: what it changed, and what did not come back."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.workspace.model import RestorePlan, RestoreResult
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.supervisor import own_layer, shared_memory
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.planning import TELL_S, Plan
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.cells import effect_record
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.report import environment_lines
from kernel_runtime.timeline.variables import diff as diff_variables
from kernel_runtime.timeline.variables import diff_environ

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_FEW = 200
"""Paths that layers may touch for a reply to wait for a list of them."""

_FEW_S = 0.3
"""Seconds that a reply waits for that list at most; it takes some milliseconds, more only where the
machine is busy. A report in two parts is worse than one a little later."""

_HOST_S = 0.3
_HOST_LATEST_S = 5.0
"""Seconds after a restore in which a moment without a cell is waited for, to look at the host."""


class Teller:
    """Makes restore results of one session, and says later what is found out later."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def result(
        self, plan: Plan, safety: Taken | None, done: RestoreResult | None, before: Any
    ) -> dict[str, Any]:
        session = self._session
        timeline = session.timeline
        variables: dict[str, Any] = {"added": [], "removed": [], "changed": []}
        environ: list[dict[str, Any]] = []
        if before is not None:
            after = {k: v for k, v in plan.target.variables.items() if k not in plan.lost}
            variables = dict(diff_variables(before, after))
            environ = diff_environ(before, after)
        changes = plan.files.done if plan.files is not None and done is not None else []
        left = (
            session.cells.left_behind(plan.target, safety.checkpoint if safety else None)
            if plan.brings_process
            else []
        )
        return {
            "checkpoint": timeline.record(timeline[plan.target.id]),
            "safety": timeline.record(safety.checkpoint) if safety else None,
            "dry_run": False,
            "variables": variables,
            "files": [session.files.as_json(change) for change in changes],
            "environment": [],
            "environment_complete": True,
            "packages": [],
            "environ": environ,
            "kept_aside": [
                {"path": printable(k.path), "saved_as": printable(k.saved_as), "reason": k.reason}
                for k in (done.kept_aside if done else ())
            ],
            "threads": {"brought_back": 0, "ids_kept": True},
            "process": plan.brought_by,
            "effects": [effect_record(effect, one) for one in left for effect in one.cell.effects],
            "compensations": session.compensations.told(left),
            "warnings": [*plan.warnings, *_left_alone(plan.files, done)],
            "took_ms": 0.0,
        }

    async def environment(
        self, result: dict[str, Any], plan: Plan, safety: Taken, request: Request | None
    ) -> None:
        """Put into a result what the restore changed outside of the workspace.

        What takes longer to find out than the reply may wait is said later.
        """
        session = self._session
        packages = session.package_steps.between(safety.checkpoint, plan.target)
        weight: int | None = None
        if plan.environment is not None and safety.environment is not None:
            weight = session.environment_changes.weight(safety.environment, plan.environment, _FEW)
        few = weight is not None and weight <= _FEW
        if packages is not None and weight == 0 and plan.tell_s <= TELL_S:
            result["packages"] = packages
        elif packages is not None and not few and plan.tell_s <= TELL_S:
            result["packages"] = packages
            result["environment_paths"] = weight
        else:
            listed = few or plan.tell_s > TELL_S
            told = asyncio.ensure_future(self.packages(plan, safety, listed, packages))
            await asyncio.wait([told], timeout=max(plan.tell_s, _FEW_S if few else 0.0))
            if told.done():
                add(result, told.result())
            else:
                session.background(self._tell_later(plan.target, told, request))
        if plan.environment is not None and safety.environment is not None:
            result["environment_differs"] = session.environment_changes.differ(
                safety.environment, plan.environment
            )
        if plan.environment is not None:
            session.background(self._tell_host_changes(plan, request))

    def not_brought_back(self, plan: Plan, safety: Taken, notes: list[list[str]]) -> list[str]:
        """Warnings. safety: the state before. notes: what the woken process says itself: kind,
        subject, detail."""
        found = [
            f"not brought back: {kind} {subject}: {detail}"
            if kind == "child process"
            else f"{kind}: {subject}: {detail}"
            for kind, subject, detail in notes
        ]
        found += [
            f"not brought back: {note.kind}: {note.subject}: {note.detail}"
            for note in (plan.environment.not_captured if plan.environment else ())
            if note.kind == shared_memory.KIND
        ]
        found += own_layer.stays(
            *(
                files.not_captured if files is not None else ()
                for files in (
                    checkpoint.capture("filesystem", engine="workspace")
                    for checkpoint in (plan.target, safety.checkpoint)
                )
            )
        )
        capture = plan.tree or plan.target.capture("process")
        if plan.brings_process and capture is not None:
            named = {subject for _, subject, _ in notes}
            found += [
                f"not brought back: {n.kind}: {n.subject}{f': {n.detail}' if n.detail else ''}"
                for n in capture.not_captured
                if n.subject.partition(" ")[0] not in named
            ]
        return found

    async def packages(
        self,
        plan: Plan,
        safety: Taken,
        files: bool = True,
        known: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """What the restore changes in the environment; files: each of them too.

        known: the packages, if it is known which change.
        """
        session = self._session
        if plan.environment is None or safety.environment is None:
            return {}
        try:
            return await session.environment_changes.compare(
                safety.environment,
                plan.environment,
                files=files,
                quick=plan.tell_s <= TELL_S,
                packages=known,
            )
        except OSError as error:
            session.log.warning("What the restore changes outside is not known: %s", error)
            return {}

    async def _tell_later(
        self, target: Checkpoint, told: asyncio.Future[dict[str, Any]], request: Request | None
    ) -> None:
        result: dict[str, Any] = {}
        add(result, await told)
        self._say(target, list(map(str.strip, environment_lines(result))), request)

    async def _tell_host_changes(self, plan: Plan, request: Request | None) -> None:
        """What the host has changed since, beneath the layers: found out when nobody waits."""
        end = time.monotonic() + _HOST_LATEST_S
        await asyncio.sleep(_HOST_S)
        while not self._session.router.idle and time.monotonic() < end:
            await asyncio.sleep(_HOST_S)
        changed, behind = await self._session.environment_changes.host_changes(
            plan.environment, int(plan.target.created_at.timestamp() * 1e9)
        )
        self._say(plan.target, [*_host_text(changed), *map(_behind_text, behind)], request)

    def _say(self, target: Checkpoint, lines: list[str], request: Request | None) -> None:
        parent = request.message if request else self._session.router.last_parent
        for line in lines:
            self._session.router.say(f"restored #{target.number}: {line}\n", parent, "stderr")


def add(result: dict[str, Any], found: dict[str, Any]) -> None:
    """Put what a comparison of environments has found into a restore result."""
    result["packages"] = found.get("packages", [])
    result["environment"] = found.get("files", [])
    result["environment_complete"] = found.get("complete", True)
    result["files"] = [*result.get("files", ()), *found.get("workspace", ())]


def _host_text(changed: list[str]) -> list[str]:
    if not changed:
        return []
    return [
        "files of this machine have changed since that checkpoint, beneath it, and are as they "
        f"are now: {', '.join(changed[:5])}{' …' if len(changed) > 5 else ''}"
    ]


def _behind_text(path: str) -> str:
    return (
        f"{path} is the session's own, as that checkpoint has it, and this machine's has changed "
        "since it was written: names may not be found. Change it again if they are not."
    )


def _left_alone(plan: RestorePlan | None, done: RestoreResult | None) -> list[str]:
    """Files whose content turned out to be damaged when it was read."""
    known = {(one.root, one.path) for one in plan.kept} if plan is not None else set()
    return [
        f"{printable(one.path)} stays as it is: {one.reason}"
        for one in (done.kept if done is not None else ())
        if (one.root, one.path) not in known
    ]
