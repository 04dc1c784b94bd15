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
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernel_runtime import plugins
from kernel_runtime.engines.base import Frozen, ProcessEngine
from kernel_runtime.errors import (
    EnvironmentRefused,
    RestoreFailed,
    SandboxError,
    TimeTravelError,
)
from kernel_runtime.executor.boot import OWN_SEED
from kernel_runtime.frames import Channel
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store.paths import key_directory
from kernel_runtime.supervisor import own_code
from kernel_runtime.supervisor.cells import Cells
from kernel_runtime.supervisor.channels import Channels
from kernel_runtime.supervisor.checkpoints import Checkpointer
from kernel_runtime.supervisor.commands import Commands
from kernel_runtime.supervisor.compensations import Compensations
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.deletion import Deletion
from kernel_runtime.supervisor.durable import Durability
from kernel_runtime.supervisor.environment import Environment, layers_of
from kernel_runtime.supervisor.events import Events
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.files import Files
from kernel_runtime.supervisor.history import History
from kernel_runtime.supervisor.images import Images
from kernel_runtime.supervisor.inner import InnerCells
from kernel_runtime.supervisor.kept_documents import KeptDocuments
from kernel_runtime.supervisor.last_words import KEPT, StartFailure, explain
from kernel_runtime.supervisor.memory import MemoryKeeper
from kernel_runtime.supervisor.package_steps import PackageSteps
from kernel_runtime.supervisor.persistence import Persistence
from kernel_runtime.supervisor.portable import Portable
from kernel_runtime.supervisor.recovery import Recovery
from kernel_runtime.supervisor.replays import Replayer
from kernel_runtime.supervisor.rescue import Rescue
from kernel_runtime.supervisor.restores import Restorer
from kernel_runtime.supervisor.router import Request, Router
from kernel_runtime.supervisor.showing import Showing
from kernel_runtime.supervisor.under_dmtcp import UnderDmtcp
from kernel_runtime.timeline.model import Capture

_SHUTDOWN_S = 2.0
"""Seconds for the user's atexit functions."""

_REAP_S = 2.0
_SLOW_START_S = 2.0
_PUBLISH_S = 20.0

_REFUSED = (
    "This kernel runs no cell, since Supervisor.environment is required (or the workspace "
    "isolated) and files outside of the workspace cannot be rolled back"
)

_LAYERS_PLAIN = (
    "The store is encrypted; files that cells write outside of the workspace are not: their layers "
    "lie in it as they are. Supervisor.environment=off makes none; an encrypted disk covers them."
)

_HOT_MIN = 8 << 20
"""Bytes: smaller mappings are copied so fast that nobody notices."""


class _NotStarted(Exception):
    """A fresh process did not come up."""

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Session:
    """What a supervisor runs. Lives in one event loop."""

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
        self._tidying = asyncio.Lock()
        self._python = python
        self._arguments = list(arguments)
        self._runtime_dir = runtime_dir
        # it holds the key that messages are signed with
        self._secrets = [Path(connection_file)] if connection_file else []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._publishing: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._closed = asyncio.Event()
        self._kernel_info: dict[str, Any] = {}
        self._starting = False
        self._last_words = ""
        self.limits: list[str] = []
        self.on_fatal: Callable[[], None] = lambda: None
        self.sandbox: InitClient = NoSandbox(self._on_exit, self._on_sandbox_lost)
        self.events = Events(channels)
        self.router = Router(channels, self._on_start, self._on_done)
        self.files = Files(config, self.cwd, log)
        self.environment = Environment(config, log, python)
        self.persistence = Persistence(config, log)
        self.timeline = self.persistence.open(self.epoch, self.files.roots)
        self._follow_document()
        self.history = History(log)
        self.package_steps = PackageSteps(self)
        self.memory = MemoryKeeper(self)
        self.durability = Durability(self)
        self.images = Images(self, runtime_dir)
        self.documents = KeptDocuments(self)
        self.showing = Showing(self)
        self.under_dmtcp = UnderDmtcp(self)
        self.cells = Cells(self)
        self.inner = InnerCells(self)
        self.compensations = Compensations(self)
        self.replays = Replayer(self)
        self.checkpoints = Checkpointer(self)
        self.restores = Restorer(self)
        self.recovery = Recovery(self)
        self.deletion = Deletion(self)
        self.commands = Commands(self)
        self.portable = Portable(self)
        self.rescue = Rescue(self)

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
        try:
            await self._start_sandbox()
        except EnvironmentRefused as error:
            self.rescue.refuse(str(error))
            return
        self._tell_of_encryption()
        engine = plugins.load(plugins.PROCESS_ENGINES, self.config.process_engine)
        self.engine: ProcessEngine = engine(self._runtime_dir, keep_ids=self.sandbox.ids_kept)
        try:
            await self.under_dmtcp.begin(self.engine)
        except TimeTravelError as error:
            self.rescue.refuse(str(error))
            return
        await self.files.recover()
        self.router.hold("start")
        if self.rescue.can_help():
            await self.start_or_rescue()
        else:
            await self.start_executor()
        if self.environment.enabled:
            self.background(self._look_after_environment())
        self.background(self._first_checkpoint())
        self.background(self.portable.on_schedule())

    def _tell_of_encryption(self) -> None:
        problem = self.persistence.problem
        if self.persistence.is_locked and problem not in self.environment.problem:
            self.router.say_next(problem)
        elif self.persistence.is_encrypted and self.environment.enabled:
            self.limits.append(_LAYERS_PLAIN)
            self.router.say_next(_LAYERS_PLAIN)

    async def _first_checkpoint(self) -> None:
        tell = asyncio.get_running_loop().call_later(_SLOW_START_S, self._tell_slow_start)
        try:
            await self.files.prepare(self.router.say_next)
            if not self.rescue.active and not self.config.visit:
                await self.checkpoints.first()
                await self.portable.at_start()
        finally:
            tell.cancel()
            self.router.release("start")

    async def _look_after_environment(self) -> None:
        """What a kernel that was killed has left behind; what the host has changed meanwhile."""
        self.background(self.environment.follow_resolver(self.lock))
        await self.persistence.sweep()
        await self.durability.sweep()
        await self.images.sweep()
        await self.documents.sweep()
        await self.under_dmtcp.sweep()
        async with self.lock:
            await self.environment.collect(self.layers_in_use())
        changed = await self.environment.changed_since_last_time()
        if changed:
            self.router.say_next(
                "Since this session last ran, files of this machine have changed beneath it: "
                f"{', '.join(changed[:5])}{' …' if len(changed) > 5 else ''}. What the session "
                "changed itself is as it was; `%timetravel reset` takes the machine's state."
            )

    def _tell_slow_start(self) -> None:
        self.router.say_next(
            "The files of the workspace are being read for the first time; the cell runs as soon "
            "as they are held."
        )

    async def _start_sandbox(self) -> None:
        wanted = self.config.sandbox
        if wanted != "none":
            try:
                await self._start_namespaces("namespaces" if wanted == "auto" else wanted)
                return
            except (SandboxError, asyncio.TimeoutError) as error:
                if wanted != "auto":
                    raise
                reason = str(error) or "no answer"
            if self.config.environment == "off":
                self.limits.append(f"Processes come back under new ids: {reason}")
            self._not_covered(
                reason,
                "memory and the workspace are held all the same, processes come back under new ids",
            )
        elif self._must_be_covered:
            raise EnvironmentRefused(f"{_REFUSED}: Supervisor.sandbox is none.")
        else:
            self.environment.problem = "The environment is not covered: Supervisor.sandbox is none."
        self.sandbox = NoSandbox(self._on_exit, self._on_sandbox_lost)
        await self.sandbox.start()
        own_code.hold()

    async def _start_namespaces(self, name: str) -> None:
        kind = plugins.load(plugins.SANDBOXES, name)
        await self._make_sandbox(kind)
        if self.config.environment == "off":
            self.environment.problem = "The environment is not covered: it is switched off."
            return
        if not self.persistence.directory:
            self._not_covered(self.persistence.problem, "memory is held all the same")
            return
        workspace = [] if self.config.is_isolated else self.files.roots
        try:
            await self.environment.start(
                self.sandbox,
                directory=self.persistence.directory / "environments" / self.timeline.id,
                workspace=workspace,
                passed=self.under_dmtcp.shared,
                hidden=[
                    self.persistence.directory,
                    self._runtime_dir,
                    key_directory(),
                    *self.persistence.secrets(),
                    *self._secrets,
                ],
            )
        except SandboxError as error:
            self._not_covered(str(error), "memory and the workspace are held all the same")
            # what was mounted half way goes with its namespaces
            await self.sandbox.close()
            await self._make_sandbox(kind)

    async def _make_sandbox(self, kind: Callable[..., InitClient]) -> None:
        self.sandbox = kind(self._on_exit, self._on_sandbox_lost)
        self.sandbox.capabilities = self.config.root_capabilities
        self.sandbox.clock_ahead_ns = self.images.clock_ahead_ns()
        await self.sandbox.start()

    @property
    def _must_be_covered(self) -> bool:
        # an isolated workspace is a layer like the rest: without layers it would be the host's own
        return self.config.environment == "required" or self.config.is_isolated

    def _not_covered(self, why: str, held: str) -> None:
        """Say it once, in the first cell. Raises EnvironmentRefused where that must not be."""
        if self._must_be_covered:
            raise EnvironmentRefused(f"{_REFUSED}: {why}")
        if self.config.environment == "off":
            return
        self.environment.problem = (
            f"Files outside of the workspace are not rolled back ({held}): {why}"
        )
        self.limits.append(self.environment.problem)
        self.router.say_next(self.environment.problem)

    async def start_executor(self) -> None:
        """Start a fresh process. Raises SandboxError."""
        try:
            await self._start_executor()
        except _NotStarted as error:
            raise SandboxError(
                f"{error.failure.text} See the server's log for its output; is ipykernel 7 or "
                "newer installed for it?"
            ) from error

    async def start_or_rescue(self) -> bool:
        """Start a fresh process, or serve the kernel without one; say whether there is one."""
        try:
            await self._start_executor()
            return True
        except _NotStarted as error:
            await self.rescue.enter(error.failure)
            return False

    async def _start_executor(self) -> None:
        self.take_up(await self._fresh_executor(self.hash_seed))

    async def fresh_executor(self, hash_seed: str) -> Executor:
        """Start a process whose strings hash as that seed says. Raises RestoreFailed."""
        try:
            return await self._fresh_executor(hash_seed)
        except _NotStarted as error:
            raise RestoreFailed(error.failure.text) from error

    async def _fresh_executor(self, hash_seed: str) -> Executor:
        executor = self.new_executor()
        self._starting, self._last_words = True, ""
        try:
            await executor.start(
                self.sandbox,
                self._python,
                self._arguments,
                self.under_dmtcp.environment(self._environment(hash_seed)),
                self.cwd,
                self.under_dmtcp.launch,
            )
        except SandboxError as error:
            how = await self._end_of(executor) or str(error)
            self.log.error("executor: %s", self._last_words.rstrip() or how)
            raise _NotStarted(explain(self._python, self._last_words, how)) from error
        finally:
            self._starting = False
        self._kernel_info = executor.hello["kernel_info"]
        if executor.hello["freezer"] and executor.hello["freezer"] not in self.limits:
            self.limits.append(executor.hello["freezer"])
        return executor

    async def _end_of(self, executor: Executor) -> str:
        """How a process ended that did not come up; "" if it was none."""
        with contextlib.suppress(asyncio.TimeoutError, SandboxError):
            if executor.pid:
                status = await asyncio.wait_for(self.sandbox.wait_exit(executor.pid), _REAP_S)
                code = os.waitstatus_to_exitcode(status)
                return f"it ended with exit status {code}" if code >= 0 else f"signal {-code}"
            return ""
        return "it does not answer"

    def new_executor(self) -> Executor:
        """Return one that is to be started or woken."""
        self.incarnation += 1
        return Executor(self, self.incarnation, self._freeze_options)

    def _freeze_options(self) -> dict[str, int]:
        return {
            # seen from inside a pid namespace, whoever is outside has no pid
            "supervisor_pid": 0 if self.sandbox.ids_kept else os.getpid(),
            "stop_timeout_ms": int(self.config.stop_timeout * 1000),
            "aside_limit": self.config.aside_limit,
            "hot_min": _HOT_MIN if self.config.unshare else 0,
        }

    def take_up(self, executor: Executor) -> None:
        """Make it the one that requests go to."""
        self.executor = executor
        self.router.replace_executor(executor)
        self.cells.tell_trees(executor)

    def reconcile_comms(self, executor: Executor, request: Request | None) -> None:
        """Make the page and a woken process agree on which comms there are."""
        parent = request.message if request else None
        missing = self.router.reconcile_comms(executor.hello["comms"], parent)
        if missing:
            executor.link.command("open_comms", ids=missing)

    async def spawn_scratch(
        self, arguments: Sequence[str], fds: dict[int, int], hash_seed: str | None
    ) -> int:
        """Start a Python program beside the executor; return its pid. Raises SandboxError."""
        with open(os.devnull, "r+b") as null:
            standard = dict.fromkeys((0, 1, 2), null.fileno())
            return await self.sandbox.spawn(
                [self._python, *arguments],
                self._environment(hash_seed or self.hash_seed),
                self.cwd,
                {**standard, **fds},
            )

    def _environment(self, hash_seed: str) -> dict[str, str]:
        env = dict(os.environ)
        if not env.get("PYTHONHASHSEED", "random").isdigit():
            env["PYTHONHASHSEED"] = env[OWN_SEED] = hash_seed
        # the executor's parent is the sandbox's init, and ends it itself
        env.pop("JPY_PARENT_PID", None)
        return env

    @property
    def is_ending(self) -> bool:
        """Whether the kernel is shutting down: it answers still, and runs nothing any more."""
        return self._closing

    async def shutdown(self) -> None:
        """End everything that belongs to this kernel; whoever asks again waits for that end."""
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        try:
            await self._shut_down()
        finally:
            self._closed.set()

    async def _shut_down(self) -> None:
        self.router.hold("shutdown")
        await self.durability.stop()
        self.documents.stop()
        for task in self._tasks - self._publishing - {asyncio.current_task()}:
            task.cancel()
        if self._publishing:
            await asyncio.wait(self._publishing, timeout=_PUBLISH_S)
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
        await self.sandbox.close()
        await self.under_dmtcp.close()
        await self.environment.close(self.layers_in_use(), forget=not self.persistence.has_document)
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
        if self._starting:
            # if it does not come up, this is why
            self._last_words = (self._last_words + text)[-KEPT:]
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
        if self._starting:
            self._last_words = (self._last_words + text + "\n")[-KEPT:]
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
        self.log.critical("The sandbox's init process is gone; the kernel ends.")
        self.router.answer_in_flight(
            error=("SandboxDied", "The sandbox of this kernel was killed. Restart the kernel.")
        )
        self.on_fatal()

    def _on_exit(self, pid: int, status: int) -> None:
        """A child of init was reaped; a frozen process that ended is no checkpoint any more."""
        if self.executor is not None and self.executor.pid == pid:
            self.executor.process_ended()
        for id, frozen in list(self.frozen.items()):
            if frozen.twin is not None and frozen.twin.pid == pid:
                frozen.twin = None
            if frozen.pid == pid:
                self.frozen.pop(id)
                self.set_process_state(id, "evicted", "its frozen process ended")

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
            self.background(self.checkpoints.after_cell(request, executor))

    # Requests on the control channel

    def kernel_info(self) -> dict[str, Any]:
        """The content of kernel_info_reply; known once the first executor is up."""
        return {"status": "ok", **self._kernel_info}

    def know_kernel(self, info: dict[str, Any]) -> None:
        """What to answer as long as no executor has said it."""
        self._kernel_info = self._kernel_info or info

    async def interrupt(self) -> None:
        """Interrupt the cell that runs; when none does, nothing happens."""
        executor = self.executor
        self.inner.interrupted = True
        if self.router.in_flight is not None and executor is not None and executor.alive:
            await self.sandbox.signal(executor.pid, signal.SIGINT, group=True)

    # Frozen processes

    async def evict(self, id: str, why: str) -> None:
        """Give up a checkpoint's frozen process; its files stay."""
        frozen = self.frozen.pop(id, None)
        if frozen is None:
            return
        self.set_process_state(id, "evicted", why)
        await self.engine.drop(frozen)

    def frozen_pids(self) -> list[int]:
        """All processes inside that are not live: frozen ones, their twins, copies of them."""
        pids = [f.pid for f in self.frozen.values()]
        pids += [f.twin.pid for f in self.frozen.values() if f.twin is not None]
        return [*pids, *self.durability.copies, *self.images.writers]

    def set_process_state(self, id: str, state: Any, why: str | None) -> None:
        """Note what became of a process capture, and tell everybody."""
        if id not in self.timeline:
            return
        capture = self.timeline[id].capture("process", engine=self.engine.name)
        if capture is None:
            return
        self.put_capture(id, replace(capture, state=state, error=why, ref=None))

    def put_capture(self, id: str, capture: Capture) -> None:
        """Put a capture on its checkpoint, if that is still there; write it, tell everybody."""
        if id in self.timeline:
            self.timeline.set_capture(id, capture)
            self.save_changed(id)

    def save_changed(self, id: str) -> None:
        """Write what has changed on a checkpoint, and tell everybody."""
        # what is not in the store yet goes there as it is then
        if id not in self.persistence.unpublished:
            self.persistence.save(self.timeline, self.timeline[id])
        self.events.publish(
            "checkpoint_changed", checkpoint=self.timeline.record(self.timeline[id])
        )

    def publish(self, id: str) -> None:
        """Write a new checkpoint into the store, in the background; shutdown waits for it."""
        self.persistence.unpublished.append(id)
        task = self.background(self._publish(id))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def _publish(self, id: str) -> None:
        # what a checkpoint names must be on the disk before the database names it
        ready = list(self.persistence.unpublished)
        await asyncio.gather(self.files.flush(), self.environment.flush(), self.under_dmtcp.flush())
        # parents before children, and nothing is waited for in between: at whatever moment the
        # supervisor is killed, the store holds no checkpoint whose parent it does not hold
        for one in ready:
            if one in self.persistence.unpublished:
                self.persistence.unpublished.remove(one)
                if one in self.timeline:
                    self.persistence.save(self.timeline, self.timeline[one])
        if id in self.timeline:
            await self.environment.index(self.timeline[id].capture("filesystem", engine="overlay"))
        if id in self.timeline:
            await self.package_steps.learn(self.timeline[id])
        await self.under_dmtcp.thin()

    async def published(self, id: str) -> None:
        """Wait until a checkpoint is in the store as it is now, or could not be written."""
        while id in self.persistence.unpublished and self._publishing:
            await asyncio.wait(self._publishing)
        await self.persistence.written()

    def layers_in_use(self) -> set[str]:
        """The layers of the environment that some checkpoint needs."""
        found: set[str] = set()
        for checkpoint in self.timeline:
            found |= layers_of(checkpoint.capture("filesystem", engine="overlay"))
        return found

    async def tidy_environment(self) -> None:
        """Merge layers, let checkpoints name the merged ones, delete what nothing needs."""
        async with self._tidying:
            captures = [c.capture("filesystem", engine="overlay") for c in self.timeline]
            merged = await self.environment.upkeep(captures, self.lock)
            if merged:
                await self.environment.flush()
            async with self.lock:
                for checkpoint in list(self.timeline) if merged else ():
                    capture = checkpoint.capture("filesystem", engine="overlay")
                    new = self.environment.rewritten(capture) if capture is not None else None
                    if new is not None:
                        changed = self.timeline.set_capture(checkpoint.id, new)
                        self.persistence.save(self.timeline, changed)
                await self.persistence.written()
                await self.environment.collect(self.layers_in_use())

    def now(self) -> datetime:
        """The time that checkpoints bear."""
        return datetime.now(timezone.utc)

    async def present_variables(self) -> dict[str, Any]:
        """Return the summary of the namespace now, or at the head where a cell runs."""
        if self.executor is not None and self.executor.alive and self.router.idle:
            with contextlib.suppress(ConnectionError):
                return await self.executor.variables()
        head = self.timeline.head
        return json.loads(json.dumps(dict(head.variables))) if head else {}
