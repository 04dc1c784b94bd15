"""Making checkpoints: the process and the workspace captured at one coordinate."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.workspace.model import Snapshot
from kernel_runtime.errors import CheckpointRefused, RestoreRefused, TimeTravelError
from kernel_runtime.later import dataclass
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.notices import Notices
from kernel_runtime.supervisor.policy import is_checkpoint_only, may_change
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.trees import Dumped
from kernel_runtime.timeline.model import (
    Capture,
    Checkpoint,
    Coordinate,
    Reason,
    check_text,
    new_id,
)
from kernel_runtime.timeline.names import check_label

if TYPE_CHECKING:
    from kernel_runtime.supervisor.leaving import Leaving
    from kernel_runtime.supervisor.session import Session


T = TypeVar("T")


@dataclass
class Taken:
    """A checkpoint, and what the restore that follows needs of it."""

    checkpoint: Checkpoint
    frozen: Frozen | None
    snapshot: Snapshot | None
    environment: Capture | None
    pause_ms: float


class Checkpointer:
    """Takes checkpoints of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: set[str] = set()
        self._notices = Notices(session)

    def wanted_after(self, request: Request) -> bool:
        """Whether the policy wants a checkpoint after this cell."""
        auto = self._session.config.auto
        if auto == "off" or (is_checkpoint_only(request.code) and not self._failed(request)):
            return False
        return auto == "cell" or may_change(request.code)

    @staticmethod
    def _failed(request: Request) -> bool:
        return (request.reply or {}).get("status") == "error"

    async def first(self) -> None:
        """The state before the first cell, to which one can go back too."""
        reason: Reason = "restart" if len(self._session.timeline) else "start"
        document = self._session.persistence.document
        comment = document.comment if document is not None and reason == "start" else ""
        async with self._session.lock:
            await self.take(reason, request=None, comment=comment)

    async def after_cell(self, request: Request, executor: Executor) -> None:
        """The automatic checkpoint; the next request waits until it is cut.

        executor: the one that ran the cell. Another one by now means that the session was restored.
        """
        session = self._session
        try:
            async with session.lock:
                if session.executor is not executor or not executor.alive:
                    return  # restored, or dead: recovery is on its way
                taken = await self.take("cell", request=request)
                self._warn(taken, request)
                session.background(self._notices.after_cell(taken.checkpoint, request, executor))
        finally:
            session.router.release("checkpoint")

    async def after_part(self, comment: str, request: Request | None) -> None:
        """Capture what a restore of a part has led to, which no checkpoint holds; never raises.

        Else a kernel that ends before its next cell resumes from the state before the restore.
        comment: what was restored. request: the cell that asked, if it has ended; while one runs
        nothing is done, as it has its own checkpoint when it ends. The caller holds the session's
        lock and the queue.
        """
        session = self._session
        if session.router.in_flight not in (None, request):
            return
        try:
            await self.take("part", request=None, comment=comment)
        except (TimeTravelError, OSError) as error:
            session.log.warning("What a restore has led to was not captured: %s", error)

    async def take(
        self,
        reason: Reason,
        *,
        request: Request | None,
        comment: str = "",
        label: str | None = None,
        pinned: bool = False,
        move: bool = False,
        leaving: Leaving | None = None,
        process: bool = True,
        rules_of: str | None = None,
    ) -> Taken:
        """Capture everything now; the caller holds the session's lock and the queue.

        move: the executor becomes the frozen process and is gone afterwards. leaving: where it is
        ready for that. A capture that fails is listed on the checkpoint as failed. Raises
        RestoreRefused if a move fails: then there is no checkpoint and the executor runs on. Raises
        BadRequest for text that cannot be stored.
        """
        session = self._session
        # what the timeline would refuse is refused before anything is frozen
        check_text(comment, "comment")
        if label is not None:
            check_label(label)
        id = leaving.id if leaving is not None else new_id()
        tree: Dumped | None = None
        if process:
            is_kept = pinned or label is not None or reason == "manual"
            tree = await session.trees.dump(reason, is_kept=is_kept)
        try:
            taken = await self._take(
                id,
                reason,
                tree,
                request=request,
                comment=comment,
                label=label,
                pinned=pinned,
                move=move,
                leaving=leaving,
                process=process,
                rules_of=rules_of,
            )
        except BaseException:
            session.trees.give_up(tree)
            raise
        finally:
            await session.trees.go_on(tree)
        if tree is not None:
            session.trees.keep(id, tree)
        return taken

    async def _take(
        self,
        id: str,
        reason: Reason,
        tree: Dumped | None,
        *,
        request: Request | None,
        comment: str,
        label: str | None,
        pinned: bool,
        move: bool,
        leaving: Leaving | None,
        process: bool,
        rules_of: str | None,
    ) -> Taken:
        """tree: the dump of the live processes, which is one of its captures."""
        session = self._session
        ours, theirs = self._hold(process and not move)
        # tasks begin in this order: the rest is set going while the process copies itself
        freezing = asyncio.ensure_future(
            self._freeze(id, move, ours, leaving) if process else _nothing()
        )
        files = asyncio.ensure_future(session.files.capture(rules_of))
        environment: asyncio.Future[Capture | None] | None = None
        if not move:
            environment = asyncio.ensure_future(self._capture_environment(theirs, reason))
        try:
            (frozen, process_capture, variables), (snapshot, file_capture) = await asyncio.gather(
                freezing, files
            )
            # a process that was moved is gone: nothing writes there any more
            layers = await (environment or self._capture_environment(None, reason))
            committed = await session.layer.capture() if session.layer.enabled else None
        except CheckpointRefused as error:
            await files
            if session.executor is not None and not session.executor.alive:
                session.executor_lost(session.executor)
            raise RestoreRefused(
                f"The present state could not be held, so nothing was restored: {error} If it "
                "stays so, restart the kernel, then restore a checkpoint that is on the disk."
            ) from error
        if tree is not None and process_capture is not None:
            tree.note_connections(process_capture)
        checkpoint = session.timeline.add(
            id=id,
            created_at=session.now(),
            reason=reason,
            coordinate=self._coordinate(request),
            comment=comment,
            label=label,
            pinned=pinned,
            code=request.code if request else "",
            captures=[
                capture
                for capture in (
                    process_capture,
                    tree.capture if tree is not None else None,
                    file_capture,
                    layers,
                    committed,
                )
                if capture is not None
            ],
            variables=variables,
            cells=session.cells.take(),
        )
        if frozen is not None:
            session.frozen[id] = frozen
            if not move:
                session.memory.last_cow_tax_ms = frozen.details.get("cow_tax_ms")
        session.captures.publish(id)
        if committed is not None and committed.bytes:
            session.captures.tidy_commits()
        session.events.publish("checkpoint_created", checkpoint=checkpoint)
        session.carrying.took(checkpoint)
        session.durability.after_checkpoint(checkpoint)
        if not move:
            session.memory.see_to_it()
        held = layers if layers is not None and layers.state == "ready" else None
        pause_ms = frozen.pause_ms if frozen else 0.0
        if tree is not None:
            pause_ms += tree.capture.details.get("pause_ms", 0.0)
        return Taken(checkpoint, frozen, snapshot, held, pause_ms)

    async def with_executor_held(self, work: Callable[[socket.socket], Awaitable[T]]) -> T:
        """Do something while the live executor is stopped; it opens its files again afterwards.

        work gets the end of the socket over which the executor is told to go on. Raises
        CheckpointRefused if it does not stop.
        """
        session = self._session
        if not session.engine.can_copy:
            raise CheckpointRefused(
                f"Under the engine {session.engine.name} the process cannot be made to open its "
                "files again, so what lies outside of the workspace stays as long as it lives. "
                "Restore the process too."
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            working = asyncio.ensure_future(work(theirs))
            try:
                assert session.executor is not None
                frozen = await session.engine.freeze(
                    session.executor, "", move=False, hold=ours.fileno()
                )
            finally:
                ours.close()
                await asyncio.wait([working])
            await session.engine.drop(frozen)
            return working.result()

    def _hold(self, wanted: bool) -> tuple[socket.socket | None, socket.socket | None]:
        """The ends of a socket by which the executor stops until the environment is captured."""
        session = self._session
        if not wanted or not session.environment.enabled:
            return None, None
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def _capture_environment(
        self, hold: socket.socket | None, reason: Reason
    ) -> Capture | None:
        session = self._session
        executor = session.executor
        try:
            return await session.environment.capture(
                executor.pid if executor is not None and executor.alive else 0,
                session.captures.frozen_pids(),
                hold.fileno() if hold is not None else None,
                must=reason == "safety",
            )
        finally:
            if hold is not None:
                hold.close()

    async def _freeze(
        self, id: str, move: bool, hold: socket.socket | None, leaving: Leaving | None
    ) -> tuple[Frozen | None, Capture, dict[str, Any]]:
        session = self._session
        started = time.perf_counter()
        try:
            if session.executor is None or not session.executor.alive:
                raise CheckpointRefused("There is no process.")
            frozen = await leaving.leave() if leaving is not None else None
            if frozen is None:
                held = hold.fileno() if hold is not None else None
                frozen = await session.engine.freeze(session.executor, id, move=move, hold=held)
        except CheckpointRefused as error:
            if move:
                raise
            failed = Capture("process", session.engine.name, "failed", error=str(error))
            return None, failed, await session.present_variables()
        finally:
            if hold is not None:
                hold.close()  # the executor has its own by now, or the capture waits no longer
        capture = Capture(
            "process",
            session.engine.name,
            "ready",
            ref=frozen.address,
            bytes=frozen.details.get("bytes", 0),
            not_captured=tuple(frozen.not_captured),
            details={
                "pause_ms": frozen.pause_ms,
                "took_ms": (time.perf_counter() - started) * 1e3,
                "threads": frozen.threads,
            },
        )
        return frozen, capture, frozen.details.get("variables", {})

    def _coordinate(self, request: Request | None) -> Coordinate:
        session = self._session
        count = 0
        if request is not None:
            count = request.input_published or 0
        elif (head := session.timeline.head) is not None and len(session.timeline) > 1:
            count = head.coordinate.execution_count
        return Coordinate(
            epoch=session.epoch,
            incarnation=session.incarnation,
            execution_count=count,
            cell_id=request.cell_id if request else None,
            msg_id=request.id if request else None,
        )

    def _warn(self, taken: Taken, request: Request) -> None:
        """Tell the user in the notebook, once for each reason, what is not held."""
        for capture in taken.checkpoint.captures:
            if capture.state == "failed" and capture.error and capture.error not in self._told:
                self._told.add(capture.error)
                self._session.router.say(
                    f"time travel: {capture.error}\n", request.message, "stderr"
                )


async def _nothing() -> tuple[None, None, dict[str, Any]]:
    return None, None, {}
