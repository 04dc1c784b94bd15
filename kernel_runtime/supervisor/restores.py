"""Restoring: plan, safety checkpoint, stop, files, process, answer. Each step can fail; none loses.

Until the executor is moved nothing has changed. After that, a failure of any step rolls forward to
the safety checkpoint: files first, then the process, as in a restore.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import Change, RestorePlan, RestoreResult
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.protect import DOCUMENT
from kernel_runtime.errors import (
    RestoreFailed,
    RestoreRefused,
    SandboxError,
    TimeTravelError,
    UnknownCheckpoint,
)
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor import faults, shared_memory
from kernel_runtime.supervisor.checkpoints import Taken
from kernel_runtime.supervisor.durable import lost_lines
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.images import image_of
from kernel_runtime.supervisor.router import Request
from kernel_runtime.timeline.cells import effect_record
from kernel_runtime.timeline.model import Capture, Checkpoint, Note
from kernel_runtime.timeline.report import environment_lines, restore_text
from kernel_runtime.timeline.variables import diff as diff_variables
from kernel_runtime.timeline.variables import diff_environ

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


PORTABLE = (
    "the process itself is gone: a fresh one has the variables of the copy on the disk, without "
    "threads, child processes and what is listed here"
)

_INTERRUPT_S = 3.0
_EXIT_S = 30.0
_TELL_S = 0.02

_FEW = 200
"""Paths that layers may touch for a reply to wait for a list of them."""

_HOST_S = 0.3
_HOST_LATEST_S = 5.0
"""Seconds after a restore in which a moment without a cell is waited for, to look at the host."""


@dataclass
class Plan:
    """What a restore will do, checked."""

    target: Checkpoint
    frozen: Frozen | None
    files: RestorePlan | None
    environment: Capture | None = None
    has_image: bool = False
    """Whether the process comes from the disk, where there is no frozen one any more."""
    namespace: dict[str, Any] | None = None
    """The manifest of the portable copy: for want of the process itself, or if it fails."""
    warnings: list[str] = field(default_factory=list)
    resumes: bool = False
    lost: set[str] = field(default_factory=set)
    """Variables that the target had and the restore did not bring."""
    tell_s: float = _TELL_S

    @property
    def brings_process(self) -> bool:
        """Whether another process takes the executor's place."""
        return self.frozen is not None or self.has_image or self.namespace is not None


class Restorer:
    """Restores of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def target(self, spec: Any, undo: bool) -> Checkpoint:
        """Return the checkpoint that is meant. Raises UnknownCheckpoint."""
        timeline = self._session.timeline
        if not undo:
            return timeline.resolve(spec)
        if timeline.last_safety is None:
            raise UnknownCheckpoint("--undo", "Nothing was restored yet, so nothing can be undone.")
        return timeline.last_safety

    def check_memory(self, target: Checkpoint) -> None:
        """See that a checkpoint's memory can be brought back. Raises RestoreRefused."""
        if target.id in self._session.frozen or target.has_durable_session:
            return
        namespace = target.capture("namespace")
        capture = target.capture("process")
        files = target.capture("filesystem", engine="workspace")
        why = (capture.error or capture.state) if capture else "it has none"
        if namespace is not None:
            why += f"; its variables were not written: {namespace.error or namespace.state}"
        rest = (
            f" Its files are held: %restore {target.number} --only files."
            if files is not None and files.state == "ready"
            else ""
        )
        raise RestoreRefused(
            f"The process of #{target.number} cannot be brought back: {why}.{rest} "
            "Nothing was changed."
        )

    async def plan(self, target: Checkpoint, only: str | None) -> Plan:
        """Check everything that can be checked first. Raises RestoreRefused."""
        session = self._session
        plan = Plan(target, None, None)
        name = f"#{target.number}"
        files = target.capture("filesystem", engine="workspace")
        if only != "files":
            self.check_memory(target)
            await self._plan_memory(plan)
        if only != "process" and session.environment.enabled:
            plan.environment = session.environment.capture_of(target)
            if plan.environment is None:
                layers = target.capture("filesystem", engine="overlay")
                why = (layers.error or layers.state) if layers else "it was not captured"
                plan.warnings.append(f"the environment stays as it is: {why}")
        if only != "process" and session.files.enabled:
            if files is None or files.state != "ready" or files.ref is None:
                why = (files.error or files.state) if files else "they were not captured"
                if only == "files":
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back: {why}. Nothing was changed."
                    )
                plan.warnings.append(f"the files stay as they are: {why}")
            else:
                try:
                    plan.files = await session.files.plan(files.ref)
                except (WorkspaceError, OSError) as error:
                    raise RestoreRefused(str(error)) from error
                if plan.files.problems:
                    path, why = plan.files.problems[0]
                    more = len(plan.files.problems) - 1
                    raise RestoreRefused(
                        f"The files of {name} cannot be brought back: {printable(path)}: {why}"
                        f"{f' (and {more} more)' if more else ''}. Nothing was changed; remove "
                        f"the cause, or take memory alone: %restore {target.number} --only process."
                    )
                plan.warnings += [f"{printable(p)}: {why}" for p, why in plan.files.warnings]
                plan.warnings += [
                    f"{printable(one.path)} stays as it is: {one.reason}"
                    for one in plan.files.kept
                    if one.reason != DOCUMENT
                ]
        return plan

    async def _plan_memory(self, plan: Plan) -> None:
        """The most faithful captures of the target's memory. Raises RestoreRefused."""
        session = self._session
        plan.frozen = session.frozen.get(plan.target.id)
        if plan.frozen is not None:
            return
        plan.has_image = image_of(plan.target) is not None
        if plan.has_image:
            try:
                await session.persistence.authenticate(session.timeline, plan.target)
            except StoreError as error:
                raise RestoreRefused(f"{error} Nothing was changed.") from error
        namespace = plan.target.capture("namespace")
        if namespace is None or namespace.state != "ready":
            return
        try:
            plan.namespace = await session.durability.manifest(plan.target)
        except RestoreRefused:
            if not plan.has_image:
                raise

    async def dry_run(self, target: Checkpoint, only: str | None) -> dict[str, Any]:
        """Return a restore result that tells what would be done."""
        session = self._session
        async with session.lock:
            plan = await self.plan(target, only)
        present = await session.present_variables() if only != "files" else {}
        result = self._result(plan, None, None, present if only != "files" else None)
        result["dry_run"] = True
        changes = plan.files.changes if plan.files else []
        result["files"] = [session.files.as_json(change) for change in changes]
        if plan.environment is not None:
            _add(result, await session.environment.compare(None, plan.environment))
        result["text"] = restore_text(result)
        return result

    async def restore(
        self,
        target: Checkpoint,
        only: str | None,
        *,
        force: bool,
        request: Request | None,
        tell_s: float = _TELL_S,
        resumes: bool = False,
    ) -> dict[str, Any]:
        """Restore; return the restore result. request: the cell that asks for it, if one does.

        tell_s: seconds that the result waits for what changed in the environment. resumes: memory
        alone, and the session goes on from target.

        Raises RestoreRefused (nothing was done) or RestoreFailed (the session is back in the state
        before). The caller holds the queue.
        """
        session = self._session
        async with session.lock:
            started = time.perf_counter()
            session.environment.make_room()
            plan = await self.plan(target, only)
            plan.tell_s, plan.resumes = tell_s, resumes
            session.events.publish("restore_started", checkpoint=session.timeline.record(target))
            try:
                await self.make_idle(force, request)
                result = await self._carry_out(plan, only, request, started)
            except TimeTravelError as error:
                session.events.publish(
                    "restore_failed",
                    checkpoint=session.timeline.record(target),
                    ename=type(error).__name__,
                    evalue=str(error),
                )
                raise
            session.events.publish("restore_finished", **result)
            session.memory.after_checkpoint()
            return result

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
        safety = await session.checkpoints.take(
            "safety",
            request=request,
            comment=f"before the restore of #{plan.target.number}",
            move=plan.brings_process and not forced,
            process=not forced,
            rules_of=plan.files.snapshot_id if plan.files is not None else None,
        )
        done: RestoreResult | None = None
        ids_kept, threads, notes = True, 0, []
        if not plan.brings_process:
            done = await self._files_alone(plan, safety, forced)
        else:
            try:
                self._progress(plan, "stop")
                await self.stop_processes()
                faults.point("stopped")
                if plan.environment is not None:
                    _check_held(safety)
                    await session.environment.restore(plan.environment)
                faults.point("environment restored")
                done = await self._restore_files(plan, safety)
                faults.point("files restored")
                self._progress(plan, "process")
                executor = await self._revive(plan)
            except Exception as error:  # any: the session must not be left without a process
                await self._roll_forward(plan, safety, done is not None, error)
                raise RestoreFailed(
                    f"The restore of #{plan.target.number} failed: {error} "
                    f"You are back where you were (#{safety.checkpoint.number})."
                ) from error
            ids_kept = bool(executor.hello.get("ids_kept", True))
            notes = executor.hello.get("notes", [])
            threads = plan.frozen.threads if plan.frozen is not None else 0
            if forced:
                session.router.answer_in_flight(
                    error=("SessionRestored", f"The session was restored to #{plan.target.number}.")
                )
            session.take_up(executor)
            session.reconcile_comms(executor, request)
        if done is not None and done.kept_aside_id is not None:
            self._keep_aside(safety, done)
        whole = only is None or plan.resumes
        session.timeline.move_head(plan.target.id if whole else safety.checkpoint.id)
        session.persistence.save_state(session.timeline)
        before = safety.checkpoint.variables if plan.brings_process else None
        result = self._result(plan, safety, done, before)
        # a reply does not wait for what takes longer to find out; and not before now: a thread
        # that looks at files would hold up each step above
        packages = session.package_steps.between(safety.checkpoint, plan.target)
        weight: int | None = None
        if plan.environment is not None and safety.environment is not None:
            weight = session.environment.weight(safety.environment, plan.environment, _FEW)
        few = weight is not None and weight <= _FEW
        if packages is not None and weight == 0 and plan.tell_s <= _TELL_S:
            result["packages"] = packages
        elif packages is not None and not few and plan.tell_s <= _TELL_S:
            result["packages"] = packages
            result["environment_paths"] = weight
        else:
            listed = few or plan.tell_s > _TELL_S
            told = asyncio.ensure_future(self._packages(plan, safety, listed))
            await asyncio.wait([told], timeout=plan.tell_s)
            if told.done():
                _add(result, told.result())
            else:
                session.background(self._tell_later(plan.target, told, request))
        if plan.environment is not None and safety.environment is not None:
            result["environment_differs"] = session.environment.differ(
                safety.environment, plan.environment
            )
        if plan.environment is not None:
            session.background(self._tell_host_changes(plan, request))
        result["threads"] = {"brought_back": threads, "ids_kept": ids_kept}
        result["warnings"] += [
            f"not brought back: {kind} {subject}: {detail}"
            if kind == "child process"
            else f"{kind}: {subject}: {detail}"
            for kind, subject, detail in notes
        ]
        result["warnings"] += [
            f"not brought back: {note.kind}: {note.subject}: {note.detail}"
            for note in (plan.environment.not_captured if plan.environment else ())
            if note.kind == shared_memory.KIND
        ]
        capture = plan.target.capture("process")
        if plan.brings_process and capture is not None:
            named = {subject for _, subject, _ in notes}
            result["warnings"] += [
                f"not brought back: {n.kind}: {n.subject}{f': {n.detail}' if n.detail else ''}"
                for n in capture.not_captured
                if n.subject.partition(" ")[0] not in named
            ]
        result["took_ms"] = (time.perf_counter() - started) * 1e3
        result["text"] = restore_text(result)
        self._progress(plan, "answer")
        return result

    async def _packages(self, plan: Plan, safety: Taken, files: bool = True) -> dict[str, Any]:
        """What the restore changes in the environment; files: each of them too."""
        session = self._session
        if plan.environment is None or safety.environment is None:
            return {}
        try:
            return await session.environment.compare(
                safety.environment,
                plan.environment,
                files=files,
                quick=plan.tell_s <= _TELL_S,
            )
        except OSError as error:
            session.log.warning("What the restore changes outside is not known: %s", error)
            return {}

    async def _tell_later(
        self, target: Checkpoint, told: asyncio.Future[dict[str, Any]], request: Request | None
    ) -> None:
        result: dict[str, Any] = {}
        _add(result, await told)
        self._say(target, list(map(str.strip, environment_lines(result))), request)

    async def _tell_host_changes(self, plan: Plan, request: Request | None) -> None:
        """What the host has changed since, beneath the layers: found out when nobody waits."""
        end = time.monotonic() + _HOST_LATEST_S
        await asyncio.sleep(_HOST_S)
        while not self._session.router.idle and time.monotonic() < end:
            await asyncio.sleep(_HOST_S)
        changed = await self._session.environment.host_changes(
            plan.environment, int(plan.target.created_at.timestamp() * 1e9)
        )
        self._say(plan.target, _host_text(changed), request)

    def _say(self, target: Checkpoint, lines: list[str], request: Request | None) -> None:
        parent = request.message if request else self._session.router.last_parent
        for line in lines:
            self._session.router.say(f"restored #{target.number}: {line}\n", parent, "stderr")

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
                await self.environment_live(plan.environment)
            return await self._restore_files(plan, safety)
        except (WorkspaceError, TimeTravelError, OSError) as error:
            if changed and safety.environment is not None:
                with contextlib.suppress(TimeTravelError):
                    await self.environment_live(safety.environment)
            raise RestoreFailed(str(error)) from error

    async def environment_live(self, capture: Capture | None) -> None:
        """Bring an environment under the executor, which is stopped meanwhile and lives on.

        Raises TimeTravelError; then all is as it was.
        """
        session = self._session
        assert capture is not None and session.executor is not None
        live = {"executor": session.executor.pid, "keep": session.frozen_pids()}
        await session.checkpoints.with_executor_held(
            lambda hold: session.environment.restore(capture, **live, hold=hold.fileno())
        )

    async def stop_processes(self) -> None:
        """End everything inside but the frozen processes; return when their ids are free."""
        session = self._session
        executor = session.executor
        if executor is not None:
            executor.drain()
            executor.close()
        try:
            async with session.durability.starting:
                kept = session.frozen_pids()
                await asyncio.wait_for(session.sandbox.kill_all_but(kept), _EXIT_S)
        except asyncio.TimeoutError:
            raise SandboxError("A process inside the sandbox does not end.") from None
        session.sandbox.forget_exits()
        session.executor = None

    async def _revive(self, plan: Plan) -> Executor:
        """The process that a plan brings back. Raises RestoreFailed."""
        if plan.frozen is not None:
            return await self.wake(plan.frozen)
        if plan.has_image:
            try:
                return await self._from_image(plan)
            except RestoreFailed as error:
                if plan.namespace is None:
                    raise
                plan.warnings.append(f"the process itself could not be brought back: {error}")
        session = self._session
        assert plan.namespace is not None
        seed = plan.namespace.get("hash_seed") or session.hash_seed
        executor = await session.fresh_executor(seed)
        loaded = await session.durability.load(executor, plan.namespace)
        session.hash_seed = seed
        plan.lost = {name for name, _ in loaded.lost}
        plan.warnings += [PORTABLE, *lost_lines(loaded)]
        return executor

    async def _from_image(self, plan: Plan) -> Executor:
        session = self._session
        id = plan.target.id
        frozen = await session.images.load(plan.target)
        session.frozen[id] = frozen
        try:
            executor = await self.wake(frozen)
        except RestoreFailed:
            del session.frozen[id]
            await session.engine.drop(frozen)
            raise
        session.set_process_state(id, "ready", None)
        return executor

    async def wake(self, frozen: Frozen) -> Executor:
        """Wake a frozen process; return the executor. Raises RestoreFailed."""
        executor = self._session.new_executor()
        await executor.wake(self._session.engine, frozen)
        return executor

    async def _restore_files(self, plan: Plan, safety: Taken) -> RestoreResult | None:
        if plan.files is None or not (plan.files.changes or plan.files.kept):
            return None
        self._progress(plan, "filesystem")
        return await self._session.files.restore(plan.files, safety.snapshot)

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
                await session.environment.restore(safety.environment)
            except SandboxError as error:
                problem = f" The environment could not be put back: {error}"
        if files_done and safety.snapshot is not None:
            try:
                await session.files.restore(await session.files.plan(safety.snapshot.id), None)
            except (WorkspaceError, OSError) as error:
                problem += f" The files could not be put back: {error}"
        try:
            if safety.frozen is None:
                raise RestoreFailed("the process before had not been held")
            session.take_up(await self.wake(safety.frozen))
        except (TimeTravelError, OSError) as error:
            fresh = await session.start_or_rescue()
            now = "this is a fresh process." if fresh else session.rescue.text()
            raise RestoreFailed(
                f"The restore of #{plan.target.number} failed ({cause}), and the process before "
                f"could not be woken either ({error}): {now} "
                f"All checkpoints are still there.{problem}"
            ) from cause
        if problem:
            raise RestoreFailed(f"The restore of #{plan.target.number} failed: {cause}.{problem}")

    def _keep_aside(self, safety: Taken, done: RestoreResult) -> None:
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

    def _progress(self, plan: Plan, step: str) -> None:
        session = self._session
        session.events.publish(
            "restore_progress",
            checkpoint={"id": plan.target.id, "number": plan.target.number},
            step=step,
        )

    def _result(
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
        changes = _changes(plan.files) if plan.files is not None and done is not None else []
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
            "effects": [effect_record(effect, one) for one in left for effect in one.cell.effects],
            "compensations": session.compensations.told(left),
            "warnings": list(plan.warnings),
            "took_ms": 0.0,
        }


def _check_held(safety: Taken) -> None:
    """Raise RestoreFailed if the present environment would be lost."""
    if safety.environment is None:
        capture = safety.checkpoint.capture("filesystem", engine="overlay")
        why = capture.error if capture is not None else None
        raise RestoreFailed(why or "The present environment could not be held.")


def _add(result: dict[str, Any], found: dict[str, Any]) -> None:
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


def _changes(files: RestorePlan | None) -> list[Change]:
    """What the restore changes: without what differs and stays as it is (the running notebook)."""
    if files is None:
        return []
    kept = {(one.root, one.path) for one in files.kept}
    return [change for change in files.changes if (change.root, change.path) not in kept]
