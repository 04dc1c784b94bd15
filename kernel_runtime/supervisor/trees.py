"""``children = "capture"``: the executor with its child processes, dumped alive by CRIU.

The dump is made at the checkpoint itself, before anything else of it is captured, and the session
waits for that; it is put into the store in the background. Its capture is one of engine ``criu``
with ``children`` among its details, how many there are, and ``pause_ms``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime import machine
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.criu_tree import UNCHANGED, CriuTreeEngine, Tree, Waking
from kernel_runtime.engines.loaded import MONOTONIC, clock_inside_ns
from kernel_runtime.engines.overlay import held
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.later import dataclass
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor.tree_captures import CHILDREN, NAME
from kernel_runtime.timeline.model import Capture, Checkpoint, Note, Reason

if TYPE_CHECKING:
    from kernel_runtime.supervisor.executors import Executor
    from kernel_runtime.supervisor.session import Session

_PORT: Final = " port "
"""In the note of a connection over TCP or UDP (native/fds_sockets.c)."""

_EMPTY: Final = ("start", "restart")
"""Reasons of checkpoints of a fresh process."""


@dataclass
class Dumped:
    """What came of one dump: processes that stand still, files that are not in the store yet."""

    capture: Capture
    stopped: list[int] = field(default_factory=list)
    files: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)
    """Processes beside the tree."""
    scratch: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def note_connections(self, frozen: Capture) -> None:
        """Those over TCP are as little held as by a frozen process, which has listed them."""
        lost = [n for n in frozen.not_captured if n.kind == "connection" and _PORT in n.detail]
        if CHILDREN in self.capture.details:
            notes = (*self.capture.not_captured, *lost)
            self.capture = replace(self.capture, not_captured=notes)


class Trees:
    """Dumps and wakes the process trees of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._made: CriuTreeEngine | None = None
        self._last = 0.0
        self._keeping: dict[str, asyncio.Task[Any]] = {}

    @property
    def _engine(self) -> CriuTreeEngine:
        if self._made is None:
            self._made = CriuTreeEngine(self._store, self._session.images.criu.probe)
        return self._made

    @property
    def _store(self) -> DumpStore:
        directory = self._session.persistence.directory
        assert directory is not None
        return DumpStore(directory)

    async def why_not(self) -> str:
        """Why child processes cannot be captured in this session, in words; "" where they can."""
        session = self._session
        if session.config.process_engine != "fork":
            return f"it goes with process_engine fork, which is {session.config.process_engine}"
        if session.persistence.directory is None:
            return f"there is no store: {session.persistence.problem}"
        if session.persistence.is_encrypted:
            return "the store is encrypted, and CRIU writes images as they are"
        if not session.sandbox.ids_kept:
            return "it needs the sandbox's pid namespace, so that their ids are free again"
        if why := await session.images.criu.why_not():
            return f"CRIU cannot be used: {why}"
        return ""

    async def tell_if_unusable(self) -> None:
        """At the start of a kernel that was told to capture children: say if that cannot be."""
        session = self._session
        if session.config.children == "capture" and (why := await self.why_not()):
            told = f"Supervisor.children is capture, but child processes are not captured: {why}."
            session.limits.append(told)
            session.router.say_next(told)
            session.config.children = "ignore"

    # Dumping

    def _is_due(self, reason: Reason, is_kept: bool) -> bool:
        config = self._session.config
        if config.children != "capture" or reason in _EMPTY:
            return False
        if is_kept or reason == "safety":
            return True
        if config.durability == "idle":
            return time.monotonic() - self._last >= config.durability_interval
        return config.durability == "every"

    async def dump(self, reason: Reason, *, is_kept: bool) -> Dumped | None:
        """Dump the tree if this checkpoint shall hold it and there are children. Never raises.

        Children stand still until `go_on`; the caller holds the session's lock and the queue.
        """
        session = self._session
        executor = session.executor
        if not self._is_due(reason, is_kept) or executor is None or not executor.alive:
            return None
        if not held.descendants(executor.pid, session.sandbox.proc()):
            return None
        if why := session.images.no_room() or await self.why_not():
            error = f"The child processes could not be captured: {why}."
            return Dumped(Capture("process", NAME, "failed", error=error))
        self._last = started = time.monotonic()
        dumped = Dumped(Capture("process", NAME, "pending"))
        try:
            threads = len(os.listdir(f"{session.sandbox.proc(executor.pid)}/task"))
            below = await session.sandbox.request("stop_below", pid=executor.pid)
            dumped.stopped = below["stopped"]
            await self._dump(executor, below["pids"], dumped)
            dumped.others = await self._others({executor.pid, *below["pids"]})
        except (CheckpointRefused, SandboxError, StoreError, OSError) as error:
            dumped.scratch.close()
            dumped.files = None
            dumped.capture = replace(dumped.capture, state="failed", error=str(error))
            return dumped
        pause_ms = (time.monotonic() - started) * 1e3
        details = {CHILDREN: len(below["pids"]), "pause_ms": pause_ms, "threads": threads}
        dumped.capture = replace(dumped.capture, details=details)
        return dumped

    async def _others(self, known: set[int]) -> set[int]:
        """The processes inside that are neither known nor frozen ones, as far as that is clear."""
        session = self._session
        listed = await session.sandbox.request("list")
        return set(listed["pids"]) - known - set(session.captures.frozen_pids())

    async def _not_below(self, dumped: Dumped) -> list[Note]:
        """The processes that were not in the tree, since their parents had ended.

        One that was being made just then, to hold a checkpoint or to write it, is known by now.
        """
        proc = self._session.sandbox.proc()
        why = "its parent ended, so it is not below the session's process any more"
        with contextlib.suppress(SandboxError):
            others = dumped.others & await self._others(set())
            names = [held.name_of(pid, proc) for pid in sorted(others)]
            return [Note("child process", name, why) for name in names if name]
        return []

    async def _dump(self, executor: Executor, below: list[int], dumped: Dumped) -> None:
        session = self._session
        dumped.files = await asyncio.to_thread(dumped.scratch.enter_context, self._store.scratch())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                outside = await executor.park_aside(theirs.fileno())
            tree = Tree(executor.pid, tuple(below), tuple(dumped.stopped), outside)
            try:
                facts = await self._engine.dump(tree, session.sandbox, dumped.files)
            finally:
                with contextlib.suppress(OSError):  # it ended: whoever watches over it says so
                    ours.send(UNCHANGED)
        dumped.facts = {
            MONOTONIC: clock_inside_ns(session.sandbox),
            "machine": dict(machine.here()),
            **facts,
        }

    async def go_on(self, dumped: Dumped | None) -> None:
        """Let the children go on; what else the checkpoint holds is captured by now."""
        if dumped is not None and dumped.stopped:
            with contextlib.suppress(SandboxError):  # it is gone, and they with it
                await self._session.sandbox.request("go_on", pids=dumped.stopped)

    def keep(self, id: str, dumped: Dumped) -> None:
        """Put a dump into the store, in the background; its checkpoint is in the timeline."""
        if dumped.files is not None:
            task = self._session.background(self._keep(id, dumped, dumped.files))
            self._keeping[id] = task
            task.add_done_callback(lambda _: self._keeping.pop(id, None))

    def give_up(self, dumped: Dumped | None) -> None:
        """The checkpoint was not made after all."""
        if dumped is not None:
            dumped.scratch.close()

    async def _keep(self, id: str, dumped: Dumped, files: Path) -> None:
        session = self._session
        capture = replace(dumped.capture, state="failed", error="the kernel ended")
        started = time.perf_counter()
        try:
            written = await asyncio.to_thread(self._store.keep, files, dumped.facts)
            details = {
                **dumped.capture.details,
                "stored_bytes": written.stored_bytes,
                "took_ms": (time.perf_counter() - started) * 1e3,
                MONOTONIC: dumped.facts[MONOTONIC],
            }
            capture = replace(
                dumped.capture,
                state="ready",
                bytes=written.bytes,
                ref=written.ref,
                details=details,
                not_captured=(*dumped.capture.not_captured, *await self._not_below(dumped)),
            )
            await session.captures.put_durable(id, capture)
            await session.images.thin()
        except (StoreError, OSError) as error:
            capture = replace(capture, error=str(error))
        finally:
            if capture.state != "ready":
                session.captures.put(id, capture)
            await asyncio.to_thread(dumped.scratch.close)

    async def settled(self, id: str) -> None:
        """Wait until what was dumped for a checkpoint is in the store, or is not."""
        if task := self._keeping.get(id):
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Finish what is being put into the store, if that does not take long."""
        if self._keeping:
            most_s = self._session.config.durability_at_end
            await asyncio.wait([*self._keeping.values()], timeout=most_s)

    # Waking

    async def wake(self, checkpoint: Checkpoint, capture: Capture) -> Executor:
        """The executor with its children. Raises RestoreFailed; then what came up must be ended."""
        session = self._session
        assert capture.ref is not None
        if why := await self.why_not():
            raise RestoreFailed(f"child processes cannot be brought back here: {why}.")
        waking = Waking(self._engine, session.sandbox)
        executor = session.launcher.new()
        await executor.wake(waking, Frozen(checkpoint.id, 0, capture.ref))
        await session.sandbox.request("go_on", pids=waking.stopped)
        return executor
