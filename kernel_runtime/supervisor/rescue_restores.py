"""Restores and resets of a kernel that has no executor (rescue.py): files first, then a process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.engines.workspace.model import ALL_FILES, Part
from kernel_runtime.errors import (
    EnvironmentRefused,
    RestoreFailed,
    RestoreRefused,
    SandboxError,
)
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.commands import Commands
from kernel_runtime.supervisor.planning import Plan
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restores import Restorer, has_files
from kernel_runtime.supervisor.telling import add
from kernel_runtime.timeline.model import Capture, Checkpoint
from kernel_runtime.timeline.report import environment_lines, title
from kernel_runtime.timeline.text import one_line

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_NAMES: Final = 4


class RescueRestorer(Restorer):
    """Restores without a live process: files, then a fresh process, or the checkpoint's own one
    where it is still frozen."""

    async def plan(
        self,
        target: Checkpoint,
        only: str | None,
        part: Part = ALL_FILES,
        partial: bool = False,
    ) -> Plan:
        """Check everything that can be checked first. Raises RestoreRefused."""
        session = self._session
        if only == "process":
            raise RestoreRefused(
                "Memory alone would come back onto the files that keep Python from starting. "
                f"Nothing was changed; take both: %restore {target.number}."
            )
        only_files = None if target.id in session.frozen else "files"
        plan = await super().plan(target, only_files, part, partial)
        if plan.files is None and plan.environment is None and plan.layer is None:
            raise RestoreRefused(
                f"#{target.number} holds no files: {'; '.join(plan.warnings)}. Nothing was changed."
            )
        return plan

    async def _carry_out(
        self, plan: Plan, only: str | None, request: Request | None, started: float
    ) -> dict[str, Any]:
        session = self._session
        safety = await self.take_safety(plan, request, process=False)
        told = asyncio.ensure_future(self._teller.packages(plan, safety))
        try:
            await self.stop_processes()
            if plan.environment is not None:
                await session.environment.restore(plan.environment, follows=has_files(plan))
            done = await self.restore_files(plan, safety)
        except Exception as error:
            problem = await self._put_back(safety)
            raise RestoreFailed(
                f"The restore of #{plan.target.number} failed: {error} "
                f"Nothing was changed.{problem}"
            ) from error
        if done is not None and done.kept_aside_id is not None:
            self.keep_aside(safety, done)
        session.timeline.move_head(plan.target.id)
        session.persistence.save_state(session.timeline)
        what = f"The files are those of #{plan.target.number}"
        woken = await self._start(plan, what, safety.checkpoint)
        result = self._teller.result(plan, safety, done, None)
        add(result, await told)
        result["took_ms"] = (time.perf_counter() - started) * 1e3
        result["text"] = _told(result, woken, plan.target.has_durable_session)
        return result

    async def reset(self, request: Request | None) -> dict[str, Any]:
        """Go back to the host's own files outside of the workspace.

        Raises RestoreRefused, or RestoreFailed, and then all is as before.
        """
        session = self._session
        engine = session.environment.engine
        if engine is None:
            raise RestoreRefused(
                "The files outside of the workspace are this machine's own already. "
                "Nothing was changed."
            )
        async with session.lock:
            started = time.perf_counter()
            safety = await session.checkpoints.take(
                "safety", request=request, comment="before the reset", process=False
            )
            clean = {"stacks": {}, "root_layer": engine.state.root_layer}
            try:
                await self.stop_processes()
                await session.environment.restore(
                    Capture("filesystem", "overlay", "ready", details=clean)
                )
            except Exception as error:
                problem = await self._put_back(safety)
                raise RestoreFailed(
                    f"The reset failed: {error} Nothing was changed.{problem}"
                ) from error
            what = "The files outside of the workspace are this machine's own"
            await self._start(None, what, safety.checkpoint)
        number = safety.checkpoint.number
        return {
            "safety": session.timeline.record(safety.checkpoint),
            "process": True,
            "packages": [],
            "files": [],
            "environment": [],
            "environment_complete": False,
            "took_ms": (time.perf_counter() - started) * 1e3,
            "text": f"{what}, the workspace is as it was, and Python runs again; variables are "
            f"gone. What this session had changed there is held by #{number}: "
            f"%restore {number} --only files.",
        }

    async def _put_back(self, safety: Taken) -> str:
        """After a failure; says what could not be put back. A restore of files undoes itself."""
        session = self._session
        if safety.environment is None:
            return ""
        try:
            await session.environment.restore(safety.environment)
        except SandboxError as error:
            return f" The environment could not be put back: {error}"
        return ""

    async def _start(self, plan: Plan | None, what: str, safety: Checkpoint) -> bool:
        """Have a process again; say whether it is the checkpoint's own. Raises RestoreFailed."""
        session = self._session
        if plan is not None and plan.frozen is not None:
            try:
                executor = await self.wake(plan.frozen)
                session.take_up(executor)
                session.rescue.leave()
                session.reconcile_comms(executor, None)
                return True
            except RestoreFailed as error:
                session.log.warning("%s A fresh process is started instead.", error)
                with contextlib.suppress(SandboxError):
                    await self.stop_processes()
        if not await session.launcher.start_or_rescue():
            raise RestoreFailed(
                f"{what} now, but that does not mend it. {session.rescue.text()} "
                f"What was there before is held by #{safety.number}."
            )
        session.rescue.leave()
        await session.checkpoints.take("restart", request=None)
        return False


class RescueCommands(Commands):
    """The protocol's commands without a live process."""

    async def do_reset(self, process: bool = False) -> dict[str, Any]:
        """Whether process is asked for or not, there will be a fresh one."""
        router = self._session.router
        restorer = self._session.restores
        if not isinstance(restorer, RescueRestorer):
            raise RestoreRefused("The kernel runs again. Nothing was changed.")
        router.hold("reset")
        try:
            return await restorer.reset(None)
        finally:
            router.release("reset")


class RefusedCommands(Commands):
    """Answers every command with why this kernel does not run anything."""

    def __init__(self, session: Session, why: str) -> None:
        super().__init__(session)
        self._why = why

    async def run(self, command: Any, args: Any) -> dict[str, Any]:
        """Raises EnvironmentRefused."""
        raise EnvironmentRefused(self._why)


def _told(result: Mapping[str, Any], woken: bool, durable: bool) -> str:
    """What such a restore did, in words. durable: its variables can be loaded from the disk."""
    target, safety = result["checkpoint"], result["safety"]
    if woken:
        lines = [f"restored {title(target)}: memory and files are as they were, Python runs again"]
    else:
        lines = [f"restored the files of {title(target)}; Python runs again, variables are gone"]
        if durable:
            lines.append(
                f"Those of #{target['number']} are on the disk: %restore {target['number']} again "
                "brings them."
            )
    paths = [str(change["path"]) for change in result["files"]]
    if paths:
        shown = ", ".join(one_line(path, 60) for path in paths[:_NAMES])
        more = f" and {len(paths) - _NAMES} more" if len(paths) > _NAMES else ""
        lines.append(f"  files of the workspace: {shown}{more}")
    lines += environment_lines(result)
    lines += [f"warning: {one_line(str(text), 1000)}" for text in result["warnings"]]
    number = safety["number"]
    lines.append(f"%restore {number} --only files brings back what was there before.")
    return "\n".join(lines)
