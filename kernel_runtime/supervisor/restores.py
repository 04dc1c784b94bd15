"""Restoring: plan, safety checkpoint, stop, files, process, answer. Each step can fail; none loses.

Until the executor is moved nothing has changed. After that, a failure of any step rolls forward to
the safety checkpoint: files first, then the process, as in a restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import ALL_FILES, Part, RestoreResult
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import (
    RestoreFailed,
    RestoreRefused,
    SandboxError,
    TimeTravelError,
)
from kernel_runtime.supervisor import faults
from kernel_runtime.supervisor.alternatives import way_to_another
from kernel_runtime.supervisor.bringing import chosen_paths
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.leaving import Leaving
from kernel_runtime.supervisor.planning import TELL_S, Plan, is_damage, partial_way
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.supervisor.reviving import Reviver
from kernel_runtime.supervisor.telling import Teller, add
from kernel_runtime.timeline.model import Capture, Checkpoint, Note
from kernel_runtime.timeline.report import restore_text

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


_INTERRUPT_S = 3.0
ANOTHER_CONTAINER: Final = (
    "the container's own files differ: another container takes this one's place, which takes some "
    "seconds, and processes that are held in memory alone are gone then"
)


class Restorer(Reviver):
    """Restores of one session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._teller = Teller(session)

    async def dry_run(
        self,
        target: Checkpoint,
        asked: RestoreRequest,
        part: Part = ALL_FILES,
    ) -> dict[str, Any]:
        """Return a restore result that tells what would be done."""
        session = self._session
        only = asked.only
        async with session.lock:
            plan = await self.plan(target, only, part, asked.partial)
        present = await session.present_variables() if only != "files" else {}
        result = self._teller.result(plan, None, None, present if only != "files" else None)
        result["dry_run"] = True
        changes = plan.files.done if plan.files else []
        result["files"] = [session.files.as_json(change) for change in changes]
        if plan.environment is not None:
            add(result, await session.environment_changes.compare(None, plan.environment))
        if plan.layer is not None:
            result["warnings"].append(ANOTHER_CONTAINER)
        result["text"] = restore_text(result)
        return result

    async def restore(
        self,
        target: Checkpoint,
        asked: RestoreRequest,
        *,
        request: Request | None,
        tell_s: float = TELL_S,
        resumes: bool = False,
        part: Part = ALL_FILES,
        how: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Restore; return the restore result. request: the cell that asks for it, if one does.
        how: what answers whoever asks (`NextContainer`), where the supervisor may have to end.

        target and part: the checkpoint and the files of the workspace that ``asked`` means. tell_s:
        seconds that the result waits for what changed in the environment. resumes: memory alone,
        and the session goes on from target.

        Raises RestoreRefused (nothing was done) or RestoreFailed (the session is back in the state
        before). The caller holds the queue.
        """
        session = self._session
        async with session.lock:
            started = time.perf_counter()
            session.environment.make_room()
            async with self._leaving(target, asked, request) as leaving:
                plan = await self.plan(target, asked.only, part, asked.partial)
                plan.tell_s, plan.resumes, plan.reseeds = tell_s, resumes, asked.reseed
                plan.is_whole = session.persistence.is_imported and not (asked.partial or resumes)
                plan.leaving = leaving
                session.events.publish("restore_started", checkpoint=target)
                try:
                    await self.make_idle(asked.force, request)
                    if plan.layer is not None:
                        await self._in_another_container(plan, asked, request, how, started)
                    result = await self._carry_out(plan, asked.only, request, started)
                    session.environment.workspace_followed()  # also where it had nothing to do
                except TimeTravelError as error:
                    session.events.publish(
                        "restore_failed",
                        checkpoint=target,
                        ename=type(error).__name__,
                        evalue=str(error),
                    )
                    raise
            session.events.publish("restore_finished", **result)
            if plan.brings_process:
                session.memory.went_back_to(target)
            session.memory.see_to_it()
            session.durability.after_going_back()
            return result

    @contextlib.asynccontextmanager
    async def _leaving(
        self, target: Checkpoint, asked: RestoreRequest, request: Request | None
    ) -> AsyncIterator[Leaving | None]:
        """The executor gets ready to leave while the files are looked at, where it surely will."""
        session = self._session
        if (
            asked.only == "files"
            or target.id not in session.frozen
            or session.executor is None
            or not session.engine.can_copy
            or session.router.in_flight not in (None, request)
            # these look at what runs, or may end all of it
            or session.config.children == "capture"
            or session.layer.enabled
        ):
            yield None
            return
        try:
            leaving = Leaving(session)
        except OSError:  # no descriptors: the freeze itself will say so
            yield None
            return
        try:
            yield leaving
        finally:
            await leaving.stay()

    async def _in_another_container(
        self,
        plan: Plan,
        asked: RestoreRequest,
        request: Request | None,
        how: Mapping[str, Any] | None,
        started: float,
    ) -> NoReturn:
        """The supervisor ends with this one. Raises RestoreRefused; nothing was changed."""
        session = self._session
        self._progress(plan, "safety")
        forced = session.router.in_flight is not None and session.router.in_flight is not request
        if forced:
            session.cells.ended(session.router.in_flight, lost=True)
        await session.next_container.leave(
            plan,
            asked,
            request,
            how,
            forced=forced,
            began=time.time() - (time.perf_counter() - started),
        )

    def part_of(self, asked: RestoreRequest) -> Part:
        """The files of the workspace that are meant. Raises BadRequest."""
        chosen = None if asked.paths is None else chosen_paths(self._session, asked.paths)
        return Part(chosen, asked.keep_notebooks)

    async def take_safety(
        self, plan: Plan, request: Request | None, *, process: bool, move: bool = False
    ) -> Taken:
        """The checkpoint of the state that a restore leaves; see Checkpointer.take."""
        return await self._session.checkpoints.take(
            "safety",
            request=request,
            comment=f"before the restore of #{plan.target.number}",
            move=move,
            leaving=plan.leaving if move else None,
            process=process,
            rules_of=plan.files.snapshot_id if plan.files is not None else None,
        )

    async def make_idle(self, force: bool, request: Request | None) -> None:
        """Interrupt the cell that runs, unless it is the one that asks. Raises RestoreRefused."""
        session = self._session
        router = session.router
        if router.in_flight is None or router.in_flight is request:
            return
        await session.interrupt()
        end = time.monotonic() + _INTERRUPT_S
        while router.in_flight is not None and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if router.in_flight is None:
            return
        if not force:
            raise RestoreRefused(
                "A cell runs and did not end when it was interrupted. Nothing was changed; "
                "ask again with force to end its process (what it has not finished is lost)."
            )

    async def _carry_out(
        self, plan: Plan, only: str | None, request: Request | None, started: float
    ) -> dict[str, Any]:
        session = self._session
        self._progress(plan, "safety")
        forced = session.router.in_flight is not None and session.router.in_flight is not request
        if forced:
            session.cells.ended(session.router.in_flight, lost=True)
        faults.point("before safety")
        safety = await self.take_safety(
            plan, request, move=plan.brings_process and not forced, process=not forced
        )
        done: RestoreResult | None = None
        executor: Executor | None = None
        if not plan.brings_process:
            done = await self._files_alone(plan, safety, forced)
        else:
            try:
                self._progress(plan, "stop")
                await self.stop_processes()
                faults.point("stopped")
                if plan.environment is not None:
                    _check_held(safety)
                    await session.environment.restore(plan.environment, follows=has_files(plan))
                faults.point("environment restored")
                done = await self.restore_files(plan, safety)
                faults.point("files restored")
                self._progress(plan, "process")
                executor = await self.revive(plan)
            except Exception as error:  # any: the session must not be left without a process
                await self._roll_forward(plan, safety, done is not None, error)
                raise RestoreFailed(
                    f"The restore of #{plan.target.number} failed: {error} "
                    f"You are back where you were (#{safety.checkpoint.number})."
                    f"{await self._way_out(plan, only, error)}"
                ) from error
            if forced:
                session.router.answer_in_flight(
                    error=("SessionRestored", f"The session was restored to #{plan.target.number}.")
                )
            session.take_up(executor)
            session.reconcile_comms(executor, request)
        return await self.settle(plan, only, safety, done, request, started, executor=executor)

    async def settle(
        self,
        plan: Plan,
        only: str | None,
        safety: Taken,
        done: RestoreResult | None,
        request: Request | None,
        started: float,
        *,
        executor: Executor | None,
    ) -> dict[str, Any]:
        """Files and process are there: note where the session is, and tell what was done.

        executor: the process that was brought back, if one was.
        """
        session = self._session
        ids_kept, threads, notes = True, 0, []
        if executor is not None and plan.brings_process:
            ids_kept = bool(executor.hello.get("ids_kept", True))
            notes = executor.hello.get("notes", [])
            threads = plan.frozen.threads if plan.frozen is not None else 0
            if plan.tree is not None:
                threads = plan.tree.details["threads"]
        if done is not None and done.kept_aside_id is not None:
            self.keep_aside(safety, done)
        whole = only is None or plan.resumes
        session.timeline.move_head(plan.target.id if whole else safety.checkpoint.id)
        session.persistence.save_state(session.timeline)
        if not whole:
            await session.checkpoints.after_part(_comment(plan), request)
        before = safety.checkpoint.variables if plan.brings_process else None
        result = self._teller.result(plan, safety, done, before)
        # not before now: a thread that looks at files would hold up each step above
        await self._teller.environment(result, plan, safety, request)
        result["threads"] = {"brought_back": threads, "ids_kept": ids_kept}
        result["warnings"] += self._teller.not_brought_back(plan, safety, notes)
        if plan.reseeds and plan.brings_process:
            result["reseeded"] = await self._reseed()
        result["took_ms"] = (time.perf_counter() - started) * 1e3
        result["text"] = restore_text(result)
        self._progress(plan, "answer")
        return result

    async def _reseed(self) -> list[str]:
        """What was seeded anew, in words."""
        executor = self._session.executor
        assert executor is not None
        try:
            return await executor.reseed()
        except ConnectionError:  # it ended: whoever watches over it says so
            return []

    async def _files_alone(self, plan: Plan, safety: Taken, forced: bool) -> RestoreResult | None:
        """Restore files under a process that lives on. Raises RestoreFailed; all is as before."""
        session = self._session
        changed = plan.environment is not None and not session.environment.is_at(plan.environment)
        if changed and forced:
            raise RestoreFailed(
                "The environment cannot be changed under a running cell. Nothing was changed; "
                "interrupt it, or restore the process too."
            )
        try:
            if changed:
                _check_held(safety)
                await self.environment_live(plan.environment, follows=has_files(plan))
            return await self.restore_files(plan, safety)
        except (WorkspaceError, TimeTravelError, OSError) as error:
            if changed and safety.environment is not None:
                with contextlib.suppress(TimeTravelError):
                    await self.environment_live(safety.environment)
            way = await self._way_out(plan, "files", error)
            raise RestoreFailed(f"{error}{way}") from error

    async def environment_live(self, capture: Capture | None, *, follows: bool = False) -> None:
        """Bring an environment under the executor, which is stopped meanwhile and lives on.

        follows: the workspace will be restored too. Raises TimeTravelError; then all is as it was.
        """
        session = self._session
        assert capture is not None and session.executor is not None
        live: dict[str, Any] = {
            "executor": session.executor.pid,
            "keep": session.captures.frozen_pids(),
            "follows": follows,
        }
        await session.checkpoints.with_executor_held(
            lambda hold: session.environment.restore(capture, **live, hold=hold.fileno())
        )

    async def restore_files(self, plan: Plan, safety: Taken) -> RestoreResult | None:
        """The part of a plan that is about the workspace. Raises WorkspaceError, OSError."""
        if plan.files is None or not has_files(plan):
            return None
        self._progress(plan, "filesystem")
        session = self._session
        return await session.files.restore(
            plan.files, safety.snapshot, session.environment.workspace_followed
        )

    async def _roll_forward(
        self, plan: Plan, safety: Taken, files_done: bool, cause: BaseException
    ) -> None:
        """Bring the state before the restore back. Raises RestoreFailed if even that fails."""
        session = self._session
        session.log.warning("Restore failed, going back to the safety checkpoint: %s", cause)
        with contextlib.suppress(TimeTravelError, OSError):
            await self.stop_processes()
        problem = ""
        if plan.environment is not None and safety.environment is not None:
            try:
                follows = files_done and safety.snapshot is not None
                await session.environment.restore(safety.environment, follows=follows)
            except SandboxError as error:
                # where the sandbox is gone the next kernel starts with both as they are now
                problem = f" Environment and files could not be put back: {error}"
        if files_done and not problem and safety.snapshot is not None:
            try:
                back = await session.files.plan(safety.snapshot.id)
                await session.files.restore(back, None, session.environment.workspace_followed)
            except (WorkspaceError, OSError) as error:
                problem += f" The files could not be put back: {error}"
        try:
            session.take_up(await self.present(safety))
        except (TimeTravelError, OSError) as error:
            fresh = await session.launcher.start_or_rescue()
            now = "this is a fresh process." if fresh else session.rescue.text()
            raise RestoreFailed(
                f"The restore of #{plan.target.number} failed ({cause}), and the process before "
                f"could not be woken either ({error}): {now} "
                f"All checkpoints are still there.{problem}"
            ) from cause
        if problem:
            raise RestoreFailed(f"The restore of #{plan.target.number} failed: {cause}.{problem}")

    def keep_aside(self, safety: Taken, done: RestoreResult) -> None:
        """What was replaced and not in the safety snapshot belongs to that checkpoint too."""
        session = self._session
        aside = Capture(
            "filesystem",
            "kept-aside",
            "ready",
            ref=done.kept_aside_id,
            not_captured=tuple(
                Note("kept aside", printable(k.path), k.reason) for k in done.kept_aside
            ),
        )
        changed = session.timeline.set_capture(safety.checkpoint.id, aside)
        session.persistence.save(session.timeline, changed)

    async def _way_out(self, plan: Plan, only: str | None, error: BaseException) -> str:
        """What to do where a file's content turned out to be damaged only when it was read."""
        if not is_damage(error):
            return ""
        other = await way_to_another(self._session, plan.target, only)
        return f" {partial_way(plan.target)}{other}"

    def _progress(self, plan: Plan, step: str) -> None:
        session = self._session
        session.events.publish(
            "restore_progress",
            checkpoint={"id": plan.target.id, "number": plan.target.number},
            step=step,
        )


def has_files(plan: Plan) -> bool:
    """Whether the workspace is to be changed."""
    return plan.files is not None and bool(plan.files.changes or plan.files.kept)


def _check_held(safety: Taken) -> None:
    """Raise RestoreFailed if the present environment would be lost."""
    if safety.environment is None:
        capture = safety.checkpoint.capture("filesystem", engine="overlay")
        why = capture.error if capture is not None else None
        raise RestoreFailed(why or "The present environment could not be held.")


def _comment(plan: Plan) -> str:
    what = "the process" if plan.brings_process else "the files"
    return f"with {what} of #{plan.target.number}"
