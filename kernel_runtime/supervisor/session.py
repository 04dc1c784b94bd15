"""One kernel's session: its parts, and how its executor comes and goes. Owns no policy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_runtime.engines.base import Frozen, ProcessEngine
from kernel_runtime.errors import (
    SandboxError,
)
from kernel_runtime.frames import Channel
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.supervisor.channels import Channels
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.container_layer import ContainerLayer
from kernel_runtime.supervisor.environment import Environment
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.files import Files
from kernel_runtime.supervisor.launching import Launcher
from kernel_runtime.supervisor.persistence import Persistence
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.rest import Rest
from kernel_runtime.supervisor.router import Router
from kernel_runtime.supervisor.sandbox_set_up import SandboxSetUp
from kernel_runtime.supervisor.starting import Starting
from kernel_runtime.supervisor.under_dmtcp import UnderDmtcp

if TYPE_CHECKING:
    from kernel_runtime.supervisor.captures import Captures
    from kernel_runtime.supervisor.carrying import Carrying
    from kernel_runtime.supervisor.cells import Cells
    from kernel_runtime.supervisor.checkpoints import Checkpointer
    from kernel_runtime.supervisor.commands import Commands
    from kernel_runtime.supervisor.compensations import Compensations
    from kernel_runtime.supervisor.deletion import Deletion
    from kernel_runtime.supervisor.durable import Durability
    from kernel_runtime.supervisor.environment_changes import EnvironmentChanges
    from kernel_runtime.supervisor.events import Events
    from kernel_runtime.supervisor.history import History
    from kernel_runtime.supervisor.holding import Holding
    from kernel_runtime.supervisor.images import Images
    from kernel_runtime.supervisor.inner import InnerCells
    from kernel_runtime.supervisor.kept_documents import KeptDocuments
    from kernel_runtime.supervisor.memory import MemoryKeeper
    from kernel_runtime.supervisor.next_container import NextContainer
    from kernel_runtime.supervisor.package_steps import PackageSteps
    from kernel_runtime.supervisor.portable import Portable
    from kernel_runtime.supervisor.recovery import Recovery
    from kernel_runtime.supervisor.replays import Replayer
    from kernel_runtime.supervisor.rescue import Rescue
    from kernel_runtime.supervisor.restores import Restorer
    from kernel_runtime.supervisor.showing import Showing
    from kernel_runtime.supervisor.trees import Trees

Waiting = tuple[list[bytes], list[bytes]]
"""A control message that is not answered yet: identities, and the frames from the header on."""

_SHUTDOWN_S = 2.0
"""Seconds for the user's atexit functions."""


class Session:
    """What a supervisor runs. Lives in one event loop."""

    # made by parts.complete, while the first process starts
    environment_changes: EnvironmentChanges
    captures: Captures
    events: Events
    history: History
    package_steps: PackageSteps
    memory: MemoryKeeper
    durability: Durability
    carrying: Carrying
    images: Images
    trees: Trees
    documents: KeptDocuments
    showing: Showing
    cells: Cells
    inner: InnerCells
    compensations: Compensations
    replays: Replayer
    checkpoints: Checkpointer
    restores: Restorer
    recovery: Recovery
    deletion: Deletion
    holding: Holding
    commands: Commands
    portable: Portable
    rescue: Rescue
    next_container: NextContainer
    engine: ProcessEngine

    def __init__(
        self,
        channels: Channels,
        config: Supervisor,
        *,
        python: str,
        arguments: Sequence[str],
        runtime_dir: Path,
        connection_file: str = "",
        log: logging.Logger,
    ) -> None:
        self.channels = channels
        self.config = config
        self.log = log
        self.epoch = uuid.uuid4().hex
        self.hash_seed = str(random.randrange(1, 1 << 32))
        self.incarnation = 0
        self.cwd = os.getcwd()
        self.executor: Executor | None = None
        self.frozen: dict[str, Frozen] = {}
        # one checkpoint or restore at a time
        self.lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._after_cell: asyncio.Task[None] | None = None
        self._sandbox_lost = False
        self._is_begun = False
        self._closed = asyncio.Event()
        self.started = asyncio.Event()
        """What there is to answer commands is there."""
        self.kernel_info: dict[str, Any] = {}
        self.limits: list[str] = []
        self.on_fatal: Callable[[], None] = lambda: None
        self.serve: Callable[[], None] = lambda: None
        """Opens the channels, once all parts are there."""
        self.control_waiting: Callable[[], list[Waiting]] = list
        self.receive_control: Callable[..., None] = lambda *_: None
        self.asking: ContextVar[Waiting | None] = ContextVar("asking", default=None)
        """The control message that the present task answers."""
        self._starting = Starting(self, runtime_dir)
        self.sandbox_events = (self._on_exit, self._on_sandbox_lost)
        self.sandbox: InitClient = NoSandbox(*self.sandbox_events)
        # the connection file holds the key that messages are signed with
        secrets = [Path(connection_file)] if connection_file else []
        self.sandbox_set_up = SandboxSetUp(self, hidden=[runtime_dir, *secrets])
        self.launcher = Launcher(self, python, arguments)
        self.rest = Rest(self._processes)
        self.router = Router(channels, self._on_start, self._on_done, self.rest)
        self.files = Files(config, self.cwd, log)
        self.files.processes = self._processes
        self.files.begin_work = self.rest.ends
        self.files.leave_others(self.rest.holds)
        self.environment = Environment(config, log, python)
        self.persistence = Persistence(config, log)
        self.timeline = self.persistence.open(self.epoch, self.files.roots)
        self._follow_document()
        self.layer = ContainerLayer(self.timeline.id, is_notebooks=self.persistence.has_document)
        channels.counts_subscribers = self.layer.enabled
        self.environment.is_committed = self.layer.enabled
        self.under_dmtcp = UnderDmtcp(self)

    def _follow_document(self) -> None:
        persistence = self.persistence
        if (document := persistence.document) is None:
            return

        def tell_files() -> None:
            self.files.follow(document, imported=persistence.is_imported)

        tell_files()
        document.on_move = tell_files
        if document.notice:
            self.router.say_next(document.notice)

    # Start and end

    async def start(self) -> None:
        """Set up the sandbox and the first executor. Raises SandboxError.

        Where a cell has broken what the executor needs, or the environment must be covered and
        cannot be, the kernel comes up without one and its cells say so.
        """
        self._is_begun = True
        try:
            await self._starting.run()
        finally:
            self.started.set()

    def complete(self) -> None:
        """Make what is not there yet, and serve. Raises AddressTaken."""
        self._starting.complete()

    def _processes(self) -> list[str]:
        executor = self.executor
        return [self.sandbox.proc(executor.pid)] if executor else []

    def take_up(self, executor: Executor) -> None:
        """Make it the one that requests go to."""
        self.executor = executor
        self.router.replace_executor(executor)
        self.cells.tell_trees(executor)
        if not executor.alive:  # it has ended between its first word and now
            self.on_end(executor)

    def reconcile_comms(self, executor: Executor, request: Request | None) -> None:
        """Make the page and a woken process agree on which comms there are."""
        parent = request.message if request else None
        missing = self.router.reconcile_comms(executor.hello["comms"], parent)
        if missing:
            executor.link.command("open_comms", ids=missing)

    @property
    def is_ending(self) -> bool:
        """Whether the kernel is shutting down: it answers still, and runs nothing any more."""
        return self._closing

    async def shutdown(self) -> None:
        """End everything that belongs to this kernel; whoever asks again waits for that end."""
        if self._is_begun:
            await self.started.wait()  # nothing is closed under a start that is on its way
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        try:
            await self._shut_down()
        finally:
            self._closed.set()

    async def _shut_down(self) -> None:
        self._starting.make_parts()
        self.router.hold("shutdown")
        if self._after_cell is not None:
            # whoever ends the kernel once a cell is done counts on what it has led to
            await asyncio.wait({self._after_cell}, timeout=self.config.durability_at_end)
        await self.durability.stop()
        await asyncio.gather(self.trees.stop(), self.images.stop())
        self.documents.stop()
        for task in self._tasks - self.captures.publishing - {asyncio.current_task()}:
            task.cancel()
        await self.captures.all_published()
        await self.memory.stop()
        executor = self.executor
        if executor is not None and executor.alive:
            executor.link.command("shutdown")
            with contextlib.suppress(asyncio.TimeoutError, SandboxError):
                await asyncio.wait_for(self.sandbox.wait_exit(executor.pid), _SHUTDOWN_S)
            executor.drain()
            executor.close()
        self.router.joiner.flush()
        await self.history.close()
        if self._sandbox_lost:
            # without namespaces nothing ends them, and nobody could ask them for anything any more
            for frozen in list(self.frozen.values()):
                await self.engine.drop(frozen)
        await self.sandbox.close()
        await self.under_dmtcp.close()
        await self.environment.close(
            self.captures.layers_in_use(), forget=not self.persistence.has_document
        )
        await self.files.release(await asyncio.to_thread(self.persistence.close))
        await self.files.close()

    def background(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine; its failure is logged, never lost."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):
                self.log.error("In the background: %s", error, exc_info=error)

        task.add_done_callback(done)
        return task

    # What the executor says (executors.Listener)

    def on_message(self, executor: Executor, channel: Channel, parts: list[bytes]) -> None:
        self.router.on_message(executor, channel, parts)

    def on_stream(self, name: str, parent: bytes, text: str) -> None:
        self.router.on_stream(name, parent, text)

    def on_raw_output(self, name: str, text: str) -> None:
        self.launcher.hear(text)
        self.router.on_raw_output(name, text)

    def on_exit_asked(self) -> None:
        request = self.router.in_flight
        self.router.say(
            "The process ends with this cell, as you ask; a fresh one takes its place. "
            "`%restore --undo` takes that back.\n",
            request.message if request else None,
            "stderr",
        )

    def on_log(self, level: int, text: str) -> None:
        self.launcher.hear(text + "\n")
        self.log.log(level, "executor: %s", text)

    def on_history(self, executor: Executor, report: dict[str, Any]) -> None:
        self.history.on_report(executor, report)

    def on_effects(self, executor: Executor, report: dict[str, Any]) -> None:
        if executor is self.executor:
            self.cells.on_effects(report)

    def on_request(self, executor: Executor, report: dict[str, Any]) -> None:
        if executor is self.executor:
            self.background(self.commands.from_magic(executor, report))

    def on_end(self, executor: Executor) -> None:
        if executor is self.executor and not executor.end_expected and not self._closing:
            self.router.hold("death")
            self.background(self.recovery.recover(executor))

    def executor_lost(self, executor: Executor) -> None:
        """It is gone though its end had looked meant: put the session back."""
        executor.end_expected = False
        self.router.hold("death")
        self.background(self.recovery.recover(executor))

    def _on_sandbox_lost(self) -> None:
        """Init is gone and everything inside with it: the kernel ends, so that it is restarted."""
        if self._closing:
            return
        self._sandbox_lost = True
        self.log.critical("The sandbox's init process is gone; the kernel ends.")
        self.router.answer_in_flight(
            error=("SandboxDied", "The sandbox of this kernel was killed. Restart the kernel.")
        )
        self.on_fatal()

    def _on_exit(self, pid: int, status: int) -> None:
        """A child of init was reaped; a frozen process that ended is no checkpoint any more."""
        if self.executor is not None and self.executor.pid == pid:
            self.executor.process_ended()
        self.engine.ended(pid)
        for id, frozen in list(self.frozen.items()):
            if frozen.twin is not None and frozen.twin.pid == pid:
                frozen.twin = None
            if frozen.needs(pid):
                self.frozen.pop(id)
                if frozen.difference is not None:
                    frozen.difference.close()
                self.captures.set_process_state(id, "evicted", "its frozen process ended")

    def _on_start(self) -> None:
        """The executor is about to be given a request."""
        self.memory.cell_starts()
        self.cells.starts()

    def _on_done(self, request: Request) -> None:
        """The executor has finished a request."""
        executor = self.executor
        self.cells.ended(request)
        if request.inner is not None:
            request.inner.set_result(None)
        elif request.leaving:
            self.router.hold("restore")
            self.background(self.commands.restore_after_cell(request))
        elif executor is None:
            return
        elif executor.exit_asked:
            self.router.hold("death")
            self.background(self.recovery.start_afresh(executor, request))
        elif request.is_cell and self.checkpoints.wanted_after(request):
            self.router.hold("checkpoint")
            self._after_cell = self.background(self.checkpoints.after_cell(request, executor))

    # Requests on the control channel

    def kernel_info_reply(self) -> dict[str, Any]:
        """The content of kernel_info_reply; known once the first executor is up."""
        return {"status": "ok", **self.kernel_info}

    def know_kernel(self, info: dict[str, Any]) -> None:
        """What to answer as long as no executor has said it."""
        self.kernel_info = self.kernel_info or info

    async def interrupt(self) -> None:
        """Interrupt the cell that runs; when none does, nothing happens.

        One that the executor has not yet begun is interrupted as soon as it has: between two cells
        an interrupt strikes nobody.
        """
        if not self._starting.has_parts:
            return
        executor = self.executor
        self.inner.interrupted = True
        request = self.router.current
        if request is None or executor is None or not executor.alive:
            return
        if not request.begun:
            request.when_begun = lambda: self.background(self.interrupt())
        else:
            await self.sandbox.signal(executor.pid, signal.SIGINT, group=True)

    def now(self) -> datetime:
        """The time that checkpoints bear."""
        return datetime.now(timezone.utc)

    async def present_variables(self) -> dict[str, Any]:
        """Return the summary of the namespace now, or at the head where a cell runs and waits for
        no magic."""
        executor = self.executor
        if executor is not None and executor.alive and (self.router.idle or executor.magics):
            with contextlib.suppress(ConnectionError):
                return await executor.variables()
        head = self.timeline.head
        return json.loads(json.dumps(dict(head.variables))) if head else {}
