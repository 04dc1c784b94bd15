"""How a session comes up: sandbox, first process, the other parts, the first checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_core.paths import jupyter_runtime_dir

from kernel_runtime import plugins
from kernel_runtime.errors import EnvironmentRefused, TimeTravelError
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store.paths import key_directory
from kernel_runtime.supervisor import idle
from kernel_runtime.supervisor.container_layer import CommitRefused
from kernel_runtime.supervisor.container_notes import Notes

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_SLOW_START_S = 2.0

_LAYERS_PLAIN = (
    "The store is encrypted; files that cells write outside of the workspace are not: their layers "
    "lie in it as they are. Supervisor.environment=off makes none; an encrypted disk covers them."
)


class Starting:
    """The start of one session."""

    def __init__(self, session: Session, runtime_dir: Path) -> None:
        self._session = session
        self._runtime_dir = runtime_dir
        self._prepared: Awaitable[None]
        self.has_parts = False
        """Whether what parts.complete makes is there."""

    def complete(self) -> None:
        """Make what is not there yet, and serve. Raises AddressTaken."""
        self.make_parts()
        session = self._session
        serve, session.serve = session.serve, lambda: None
        serve()

    def make_parts(self) -> None:
        """Make the parts of the session that are not there yet."""
        if not self.has_parts:
            from kernel_runtime.supervisor import parts

            self.has_parts = True
            parts.complete(self._session, self._runtime_dir)

    async def run(self) -> None:
        """See Session.start."""
        session = self._session
        try:
            await session.sandbox_set_up.start()
        except EnvironmentRefused as error:
            self.complete()
            session.rescue.refuse(str(error))
            return
        self._tell_of_store()
        engine = plugins.load(plugins.PROCESS_ENGINES, session.config.process_engine)
        session.engine = engine(self._runtime_dir, keep_ids=session.sandbox.ids_kept)
        if session.under_dmtcp.wanted:
            self.complete()
            try:
                await session.under_dmtcp.begin(session.engine)
            except TimeTravelError as error:
                session.rescue.refuse(str(error))
                return
        await session.files.recover()
        session.router.hold("start")
        # in this order: the second one is done while the process that the first one asks for starts
        with idle.used():
            if self._goes_on:
                await self._completed()
            else:
                await asyncio.gather(session.launcher.start_first(), self._completed())
        await session.trees.tell_if_unusable()
        if session.environment.enabled:
            session.background(self._look_after_environment())
        session.background(self._first_checkpoint())
        session.background(session.portable.on_schedule())
        session.background(session.memory.watch())

    async def _completed(self) -> None:
        session = self._session
        self.complete()
        await session.next_container.take_over()
        self._prepared = session.background(session.files.prepare(session.router.say_next))
        if isinstance(session.sandbox, NoSandbox):
            from kernel_runtime.supervisor import own_code

            own_code.hold()

    @property
    def _goes_on(self) -> bool:
        """Whether a restore was begun in another container, which brings a process itself."""
        directory = self._session.persistence.directory
        return (
            self._session.layer.enabled
            and directory is not None
            and Notes(directory, self._session.timeline.id).is_there
        )

    def _tell_of_store(self) -> None:
        session = self._session
        problem = session.persistence.problem
        if problem and problem not in session.environment.problem:
            session.router.say_next(problem)
        elif session.persistence.is_encrypted and session.environment.enabled:
            session.limits.append(_LAYERS_PLAIN)
            session.router.say_next(_LAYERS_PLAIN)

    async def _first_checkpoint(self) -> None:
        session = self._session
        tell = asyncio.get_running_loop().call_later(_SLOW_START_S, self._tell_slow_start)
        if session.next_container.pending:
            tell.cancel()  # what waits is a restore, which says itself what it took
        try:
            await self._prepared
            if not session.config.visit:
                await self._look_at_own_layer()
            if session.next_container.pending:
                await session.next_container.finish()
            elif not session.rescue.active and not session.config.visit:
                await session.checkpoints.first()
                await session.portable.at_start()
                session.captures.tidy_commits()
        finally:
            tell.cancel()
            session.router.release("start")

    async def _look_at_own_layer(self) -> None:
        """Of a container, where no namespaces cover it."""
        session = self._session
        if session.environment.enabled:
            return
        own = [key_directory(), Path(jupyter_runtime_dir())]
        own += [d for d in [session.persistence.directory] if d is not None]
        if not session.layer.enabled:
            await session.files.watch_own_layer(own)
            return
        try:
            await session.layer.start([*session.files.roots, *own])
            if session.layer.why:
                session.router.say_next(session.layer.why)
            if not session.next_container.pending:
                await session.layer.arrived()
        except CommitRefused as error:
            session.environment.problem = f"Files outside of the workspace are not held: {error}"
            session.router.say_next(session.environment.problem)

    async def _look_after_environment(self) -> None:
        """What a kernel that was killed has left behind; what the host has changed meanwhile."""
        session = self._session
        session.background(session.environment.follow_host())
        await session.persistence.sweep()
        await session.durability.sweep()
        await session.images.sweep()
        await session.documents.sweep()
        await session.under_dmtcp.sweep()
        async with session.lock:
            await session.environment.collect(session.captures.layers_in_use())
        changed = await session.environment_changes.changed_since_last_time()
        if changed:
            session.router.say_next(
                "Since this session last ran, files of this machine have changed beneath it: "
                f"{', '.join(changed[:5])}{' …' if len(changed) > 5 else ''}. What the session "
                "changed itself is as it was; `%timetravel reset` takes the machine's state."
            )

    def _tell_slow_start(self) -> None:
        session = self._session
        session.router.say_next(
            "The files of the workspace are being read for the first time; the cell runs as soon "
            "as they are held."
        )
