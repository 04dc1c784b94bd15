"""When the executor dies (a segfault, os._exit, kill -9, out of memory): the session goes on.

Frozen processes are separate processes, so nothing but what ran since the newest checkpoint is
lost; what that changed in files is kept by a safety checkpoint of the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.errors import RestoreFailed, RestoreRefused, SandboxError, TimeTravelError
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.planning import Plan
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.model import Checkpoint

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_REAP_S = 10.0
"""A busy machine may be that late with the end of a process whose link is closed."""
_LEAVE_S = 2.0
_DEATHS_MOST = 2
"""So many processes of one checkpoint may end by themselves, with no cell run in them."""
ERROR_NAME = "ExecutorDied"
"""``ename`` of the reply to the cell in which it died."""


class Recovery:
    """Brings one session back after its executor died."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._deaths: Counter[str] = Counter()
        """By the id of the checkpoint that they came from: ends that no cell has caused."""

    async def recover(self, executor: Executor) -> None:
        """Put the session back to the newest checkpoint and say so. Never raises."""
        session = self._session
        try:
            async with session.lock:
                if session.executor is not executor:
                    return  # a restore that was under way has replaced it
                fate, how = await self._fate(executor)
                head = session.timeline.head
                if head is not None and session.router.in_flight is None and not executor.requests:
                    self._deaths[head.id] += 1
                session.cells.ended(session.router.in_flight, lost=True)
                back, files_text = await self._bring_back()
                session.cells.forget()
                told = session.rescue.text() if session.rescue.active else self._told(back)
                text = f"The process that runs your cells died ({how}). {told}{files_text}"
                session.log.warning(text)
                session.events.publish(
                    "executor_died",
                    **fate,
                    checkpoint=back,
                    text=text,
                )
                if session.router.in_flight is not None:
                    session.router.answer_in_flight(error=(ERROR_NAME, text))
                else:
                    session.router.say(text + "\n", session.router.last_parent, "stderr")
        finally:
            session.router.release("death")

    async def start_afresh(self, executor: Executor, request: Request) -> None:
        """A cell has called ``exit``: a fresh process, as a stock kernel is restarted then."""
        session = self._session
        try:
            async with session.lock:
                # so that `%restore --undo` takes the exit back
                await session.checkpoints.take("safety", request=request, comment="before exit")
                executor.end_expected = True
                executor.link.command("shutdown")
                with contextlib.suppress(asyncio.TimeoutError, SandboxError):
                    await asyncio.wait_for(session.sandbox.wait_exit(executor.pid), _LEAVE_S)
                await session.restores.stop_processes()
                if await session.launcher.start_or_rescue():
                    await session.checkpoints.take("restart", request=None)
                else:
                    session.router.say(f"{session.rescue.text()}\n", request.message, "stderr")
        finally:
            session.router.release("death")

    async def _fate(self, executor: Executor) -> tuple[dict[str, int], str]:
        try:
            status = await asyncio.wait_for(self._session.sandbox.wait_exit(executor.pid), _REAP_S)
        except (asyncio.TimeoutError, SandboxError):
            return {}, "it closed its link"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return {"exit_code": code}, f"it exited with code {code}"
        with contextlib.suppress(ValueError):
            return {"signal": -code}, signal.Signals(-code).name
        return {"signal": -code}, f"signal {-code}"

    @staticmethod
    def _told(back: Checkpoint | None) -> str:
        if back is None:
            return "A fresh one was started; its variables are gone."
        shown = back.code if len(back.code) <= 60 else back.code[:59] + "…"
        code = f" (after `{shown}`)" if shown else ""
        return f"The session is back at checkpoint #{back.number}{code}; run the next cell."

    async def _bring_back(self) -> tuple[Checkpoint | None, str]:
        """Return the checkpoint that the session is at now, and what to say about files."""
        session = self._session
        await session.restores.stop_processes()
        if session.config.on_death == "restore":
            for checkpoint in reversed(session.timeline.present_branch()):
                frozen = session.frozen.get(checkpoint.id)
                if frozen is None:
                    continue
                files_text = await self._files_back(checkpoint)
                told = await self._woken(checkpoint, frozen)
                if told is not None:
                    session.timeline.move_head(checkpoint.id)
                    session.persistence.save_state(session.timeline)
                    session.durability.after_going_back()
                    return checkpoint, f"{told}{files_text}"
        await session.launcher.start_or_rescue()
        return None, ""

    async def _woken(self, checkpoint: Checkpoint, frozen: Frozen) -> str | None:
        """Bring a checkpoint's process back, or its variables; say what that costs, or None."""
        session = self._session
        told = ""
        try:
            if self._deaths[checkpoint.id] >= _DEATHS_MOST:
                raise RestoreFailed("It ends by itself as soon as it is woken.")
            found = await session.restores.with_children_if_held(checkpoint)
            if isinstance(found, str) and found:
                told = f" Child processes were not brought back: {found}"
            executor = await session.restores.wake(frozen) if isinstance(found, str) else found
        except RestoreFailed as error:
            session.log.warning("%s Trying its variables, or the checkpoint before it.", error)
            await session.restores.stop_processes()
            try:
                plan = Plan(checkpoint, None, None)
                plan.namespace = await session.durability.manifest_if_any(checkpoint)
                if plan.namespace is None:
                    return None
                executor = await session.restores.portably(plan)
            except (RestoreFailed, RestoreRefused) as failure:
                session.log.warning("%s Trying the checkpoint before it.", failure)
                await session.restores.stop_processes()
                return None
            lines = "\n".join(plan.warnings)
            told = f" The process itself could not be brought back: {error}\n{lines}\n"
        session.take_up(executor)
        session.reconcile_comms(executor, None)
        return told

    async def _files_back(self, checkpoint: Checkpoint) -> str:
        """Put the workspace to the checkpoint's state; keep what the dead cell had written."""
        session = self._session
        return await self._workspace_back(checkpoint) + await session.layer.left_as_is(checkpoint)

    async def _workspace_back(self, checkpoint: Checkpoint) -> str:
        session = self._session
        capture = checkpoint.capture("filesystem", engine="workspace")
        if session.config.files_on_death == "keep":
            return ""
        try:
            plan = None
            if session.files.enabled and capture is not None and capture.state == "ready":
                assert capture.ref is not None
                plan = await session.files.plan(capture.ref)
            layers = session.environment.capture_of(checkpoint)
            if layers is not None and session.environment.is_at(layers):
                layers = None
            if layers is None and (plan is None or not plan.changes):
                return ""
            safety: Taken = await session.checkpoints.take(
                "safety", request=None, comment="files when the process died", process=False
            )
            if layers is not None:
                await session.environment.restore(layers)
            if plan is not None:
                await session.files.restore(plan, safety.snapshot)
        except (WorkspaceError, TimeTravelError, OSError) as error:
            return f" The files stay as the dead cell left them: {error}"
        count = len(plan.changes) if plan is not None else 0
        what = f"{count} file{'s' if count != 1 else ''}" if count else ""
        if layers is not None:
            what += " and the environment" if what else "The environment"
        return (
            f" {what} changed since then went back too; "
            f"`%restore {safety.checkpoint.number} --only files` brings that again."
        )
