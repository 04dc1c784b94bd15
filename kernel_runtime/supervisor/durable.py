"""Durable checkpoints: the portable copy of the namespace, made in the background.

A copy of the frozen process pickles (kernel_runtime.executor.copies), so the live session is
neither paused nor slowed; a scratch process loads what is new once, before the capture is called
ready. One at a time: where cells come faster, automatic checkpoints between are skipped, never a
manual or a pinned one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.blob_channel import ChannelError
from kernel_runtime.engines.dill.engine import NAME, DillEngine, Loaded, PicklingEnded
from kernel_runtime.engines.loaded import MONOTONIC, clock_inside_ns
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, RestoreRefused
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.supervisor.carrying import NOT_LOADED
from kernel_runtime.supervisor.images import images_of
from kernel_runtime.supervisor.scratch import Scratch
from kernel_runtime.supervisor.writing_order import KIND, WritingOrder, is_written
from kernel_runtime.timeline.model import Capture, Checkpoint, Note

if TYPE_CHECKING:
    from kernel_runtime.supervisor.executors import Executor
    from kernel_runtime.supervisor.session import Session

_SOON_S: Final = 0.02
_TRIES: Final = 3
"""A restore in between can end the process that is written; then it is tried again."""

_BLAMED_MOST: Final = 16
"""Variables that may each end the process that pickles them, until none of them is written."""


class Durability:
    """Makes and loads the namespace captures of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="durable")
        self._order = WritingOrder(session)
        self._reading: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[Capture]] = {}
        self._engine: DillEngine | None = None
        self._older: Mapping[str, Any] | None = None
        """What was written last, or loaded: what changes after it may be stored as deltas."""
        self.scratch = Scratch(session)
        self.copies: set[int] = set()
        """Pids, inside, of processes that are being written or tried, which a restore leaves."""
        self._at_work: str | None = None
        self.secured: set[str] = set()
        """Checkpoints whose images are not to be given up for newer ones."""
        self.starting = asyncio.Lock()
        """Held while one of them starts, so that its pid is known before a restore kills others."""

    @property
    def engine(self) -> DillEngine:
        """Raises RestoreRefused where there is no store."""
        if self._engine is None:
            directory = self._session.persistence.directory
            if directory is None:
                raise RestoreRefused(
                    f"There is no store: {self._session.persistence.problem} Nothing was changed."
                )
            self._engine = DillEngine(NamespaceStore(directory))
        return self._engine

    # Which, and when

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was made, labelled or pinned: it may have to be written."""
        self._order.add(checkpoint)
        self._go_on()

    def after_going_back(self) -> None:
        """An older checkpoint is the present now: it may have to be written."""
        self._order.add_present()
        self._go_on()

    def before_it_goes(self, id: str) -> None:
        """Have one written whose process will have to make room, if no cell runs meanwhile."""
        self._order.add_before_it_goes(id)
        self._go_on()

    @property
    def writes_by_itself(self) -> bool:
        """Whether automatic checkpoints are written, sooner or later."""
        return self._order.writes_by_itself

    @property
    def due(self) -> frozenset[str]:
        """What is written now, and what somebody has asked for: their processes are needed."""
        return frozenset(self._order.asked) | ({self._at_work} if self._at_work else frozenset())

    def reads(self, id: str) -> bool:
        """Whether a checkpoint's process is being read, or will be because somebody asked."""
        return id in self._order.asked or id in self._reading

    def _go_on(self) -> None:
        if not self._order.is_empty and (self._task is None or self._task.done()):
            self._task = self._session.background(self._rounds())

    async def _rounds(self) -> None:
        images = self._session.images
        to_image: list[str] = []
        while not self._order.closed and (id := await self._order.next()) is not None:
            await self._work_on(id, self._write)
            to_image.append(id)
            if self._order.is_ending and not self._order.is_empty:
                continue  # the variables of all of them come first: there may be no time for more
            while to_image and images.wanted() and not self._order.closed:
                await self._work_on(to_image.pop(0), images.write)
            to_image.clear()
            head = self._session.timeline.head
            if head is None or head.id != id:
                self._session.memory.see_to_it()  # it may make room now

    async def _work_on(self, id: str, write: Callable[[str], Awaitable[None]]) -> None:
        self._at_work = id
        try:
            await write(id)
        finally:
            self._at_work = None

    async def now(self, checkpoint: Checkpoint) -> Capture:
        """The namespace capture of a checkpoint, made first if need be.

        Raises RestoreRefused: there is none and none can be made.
        """
        capture = self._session.timeline[checkpoint.id].capture(KIND)
        if capture is not None and capture.state == "ready":
            return capture
        frozen = self._session.frozen.get(checkpoint.id)
        if frozen is not None and not self._order.can_read(checkpoint.id):
            raise RestoreRefused(
                f"The variables of #{checkpoint.number} were not written apart from its processes: "
                f"the engine {self._session.engine.name} keeps those as a whole. Restore it. "
                "Nothing was changed."
            )
        if frozen is None:
            why = (capture.error or capture.state) if capture else "its process is gone"
            raise RestoreRefused(
                f"The variables of #{checkpoint.number} are not held: {why}. Nothing was changed."
            )
        future = self._waiting.get(checkpoint.id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._waiting[checkpoint.id] = future
            self._order.ask(checkpoint)
            self._go_on()
        capture = await asyncio.shield(future)
        if capture.state != "ready":
            raise RestoreRefused(
                f"The variables of #{checkpoint.number} could not be written: {capture.error}. "
                "Nothing was changed."
            )
        return capture

    async def secure(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint's memory on the disk: variables, and the process where images are made.

        Raises RestoreRefused where neither can be written.
        """
        session, id = self._session, checkpoint.id
        self.secured.add(id)
        await session.trees.settled(id)
        found = session.timeline[id]
        lacks_image = session.images.wanted() and not images_of(found)
        if self._order.can_read(id) and (lacks_image or not is_written(found)):
            if id != self._at_work:
                self._order.ask(found)
                self._go_on()
            await self.asked_are_written()
        found = session.timeline[id]
        if not found.has_durable_session:
            capture = found.capture(KIND)
            why = (capture.error or capture.state) if capture is not None else "it was not written"
            raise RestoreRefused(
                f"The memory of #{found.number} is not on the disk, which outlives the container, "
                f"and could not be written: {why}. Nothing was changed."
            )

    async def asked_are_written(self) -> None:
        """Wait until nothing is being written that somebody has asked for."""
        while (self._order.asked or self._at_work is not None) and not self._order.closed:
            await asyncio.sleep(_SOON_S)

    # Writing

    async def _write(self, id: str) -> None:
        """Make one capture. Never raises: what failed is noted on the checkpoint."""
        self._session.captures.put(id, Capture(KIND, NAME, "pending"))
        capture = Capture(KIND, NAME, "failed", error="the kernel ended before it was ready")
        try:
            capture = await self._captured(id)
        except Exception as error:  # a full disk, a damaged store: the session runs on
            capture = Capture(KIND, NAME, "failed", error=str(error))
            self._session.log.warning("The namespace could not be written: %s", error)
        finally:
            if capture.state != "ready":
                self._session.captures.put(id, capture)
            future = self._waiting.pop(id, None)
            if future is not None and not future.done():
                future.set_result(capture)

    async def _captured(self, id: str) -> Capture:
        """The capture, noted if it is ready; tried again where a restore came in between.

        What ends the process twice in a row is left out: it costs only itself.
        """
        session = self._session
        left_out: dict[str, str] = {}
        ended_at: tuple[str, ...] = ()
        left = _TRIES
        while True:
            left -= 1
            try:
                # until its name is in the database, no sweep may take what it is made of
                with self.engine.store.writing():
                    capture = await self._capture(id, left_out)
                    await session.captures.put_durable(id, capture)
                return capture
            except (ChannelError, CheckpointRefused) as error:
                if isinstance(error, PicklingEnded):
                    is_news = not left_out.keys() >= set(error.names)
                    if error.names == ended_at and is_news and len(left_out) < _BLAMED_MOST:
                        left_out.update(dict.fromkeys(ended_at, error.reason))
                        left = _TRIES
                    ended_at = error.names
                if id not in session.frozen or self._order.closed or left <= 0:
                    return Capture(KIND, NAME, "failed", error=str(error))

    async def _capture(self, id: str, left_out: Mapping[str, str]) -> Capture:
        """Raises ChannelError or CheckpointRefused; that may be different another time."""
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        store = self.engine.store
        added = store.put_bytes
        checkpoint = self._session.timeline[id]
        frozen_at = checkpoint.created_at.timestamp()
        clock_ns = clock_inside_ns(self._session.sandbox)
        async with self.copy(id) as link:
            manifest = await loop.run_in_executor(
                self._worker, self.engine.take_in, link, frozen_at, left_out, self._older
            )
        manifest = await self.scratch.tried(self.engine, self._worker, manifest, checkpoint)
        manifest = await loop.run_in_executor(
            self._worker, self._session.carrying.into, id, manifest, store
        )
        ref = await loop.run_in_executor(self._worker, self.engine.publish, manifest)
        self._older = manifest
        return Capture(
            KIND,
            NAME,
            "ready",
            bytes=sum(unit["bytes"] for unit in manifest["units"]),
            ref=ref,
            not_captured=(
                *(Note("variable", name, why) for name, why in manifest["lost"]),
                *(
                    Note("variable", name, f"{NOT_LOADED}: {why}")
                    for name, why in manifest.get("carried", ())
                ),
            ),
            details={
                "notices": manifest["notices"],
                "hash_seed": manifest.get("hash_seed"),
                MONOTONIC: clock_ns,
                "stored_bytes": store.put_bytes - added,
                "took_ms": (time.perf_counter() - started) * 1e3,
            },
        )

    @contextlib.asynccontextmanager
    async def copy(self, id: str) -> AsyncIterator[socket.socket]:
        """A copy of a frozen process, ready to be asked. Raises CheckpointRefused."""
        session = self._session
        frozen = session.frozen.get(id)
        if frozen is None:
            raise CheckpointRefused("its frozen process is gone")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = 0
        self._reading.append(id)
        try:
            with ours:
                with theirs, open(os.devnull, "r+b") as null:
                    fds = [theirs.fileno(), null.fileno(), null.fileno()]
                    async with self.starting:
                        pid = await session.engine.copy(frozen, fds)
                        self.copies.add(pid)
                yield ours
        finally:
            if pid:
                await session.sandbox.signal(pid, signal.SIGKILL, group=False)
                self.copies.discard(pid)
            self._reading.remove(id)

    # Reading

    async def manifest(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What its capture holds, verified. Raises RestoreRefused; nothing was changed."""
        session = self._session
        capture = session.timeline[checkpoint.id].capture(KIND)
        assert capture is not None and capture.ref is not None
        engine, ref = self.engine, capture.ref
        try:
            await session.persistence.authenticate(
                session.timeline, session.timeline[checkpoint.id]
            )
            return await asyncio.to_thread(engine.store.manifest, ref)
        except Exception as error:  # missing, damaged, not ours
            raise RestoreRefused(
                f"The saved variables cannot be read: {error} Nothing was changed."
            ) from error

    async def manifest_if_any(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """Likewise, None where the variables were not written. Raises RestoreRefused."""
        capture = checkpoint.capture(KIND)
        if capture is None or capture.state != "ready":
            return None
        return await self.manifest(checkpoint)

    async def load(
        self,
        executor: Executor,
        manifest: Mapping[str, Any],
        names: Collection[str] | None = None,
    ) -> Loaded:
        """Bring variables (None: the whole session) into a process. Raises RestoreFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                doing = asyncio.ensure_future(executor.load_namespace(theirs.fileno()))
                await asyncio.sleep(0)  # the descriptor is on its way before it is closed here
            try:
                loaded = await asyncio.to_thread(self.engine.hand_out, ours, manifest, names)
                await doing
            except (ChannelError, OSError) as error:
                doing.cancel()
                raise RestoreFailed(f"The variables could not be loaded: {error}") from error
        if names is None:
            self._older = manifest
        return loaded

    async def load_in_scratch(self, manifest: Mapping[str, Any]) -> Loaded:
        """Load a whole session in a process of its own. Raises ChannelError, CheckpointRefused."""
        return await self.scratch.in_process(self.engine, self._worker, manifest, None, True)

    async def sweep(self) -> None:
        """Delete what no checkpoint of any timeline needs any more. Never raises."""
        persistence = self._session.persistence
        if persistence.directory is None:
            return
        try:
            await asyncio.to_thread(self.engine.store.sweep, persistence.namespaces)
        except (StoreError, OSError) as error:
            self._session.log.warning("Saved variables were not swept: %s", error)

    # The end

    async def stop(self) -> None:
        """Finish what is being written, and the head, if that does not take long."""
        task = self._task
        if task is not None and not task.done() and self._session.persistence.has_document:
            self._order.end_soon()
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(task), self._session.config.durability_at_end)
        self._order.closed = True
        if task is not None and not task.done():
            task.cancel()
        self._worker.shutdown(wait=False, cancel_futures=True)


def lost_lines(loaded: Loaded) -> list[str]:
    """What a restore from the portable copy says about what is not as it was."""
    lines = [f"not brought back: {name}: {why}" for name, why in loaded.lost]
    return lines + [f"{name}: {text}" for name, text in loaded.notices]
