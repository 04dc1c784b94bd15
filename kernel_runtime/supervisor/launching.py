"""Fresh processes: the executor, and programs beside it. How one ended that did not come up."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernel_runtime.errors import RestoreFailed, SandboxError
from kernel_runtime.executor.boot import OWN_SEED
from kernel_runtime.supervisor.executors import Executor
from kernel_runtime.supervisor.last_words import KEPT, StartFailure, explain

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_REAP_S = 10.0

_HOT_MIN = 8 << 20
"""Bytes: smaller mappings are copied so fast that nobody notices."""


class _NotStarted(Exception):
    """A fresh process did not come up."""

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Launcher:
    """Starts processes of one session in its sandbox."""

    def __init__(self, session: Session, python: str, arguments: Sequence[str]) -> None:
        self._session = session
        self._python = python
        self._arguments = list(arguments)
        self._starting = False
        self._last_words = ""

    async def start(self) -> None:
        """Start a fresh process. Raises SandboxError."""
        try:
            await self._start()
        except _NotStarted as error:
            raise self._refused(error) from error

    @staticmethod
    def _refused(error: _NotStarted) -> SandboxError:
        return SandboxError(
            f"{error.failure.text} See the server's log for its output; is ipykernel 7 or newer "
            "installed for it?"
        )

    async def start_first(self) -> None:
        """Start the kernel's first one, or serve without it where there is something to go back to.
        Raises SandboxError where there is nothing."""
        try:
            await self._start()
        except _NotStarted as error:
            if not self._session.rescue.can_help():
                raise self._refused(error) from error
            await self._session.rescue.enter(error.failure)

    async def start_or_rescue(self) -> bool:
        """Start a fresh process, or serve the kernel without one; say whether there is one."""
        try:
            await self._start()
            return True
        except _NotStarted as error:
            await self._session.rescue.enter(error.failure)
            return False

    async def _start(self) -> None:
        session = self._session
        session.take_up(await self._fresh(session.hash_seed))
        session.carrying.nothing()

    async def fresh(self, hash_seed: str) -> Executor:
        """Start a process whose strings hash as that seed says. Raises RestoreFailed."""
        try:
            return await self._fresh(hash_seed)
        except _NotStarted as error:
            raise RestoreFailed(error.failure.text) from error

    async def _fresh(self, hash_seed: str) -> Executor:
        session = self._session
        executor = self.new()
        self._starting, self._last_words = True, ""
        try:
            await executor.start(
                session.sandbox,
                self._python,
                self._arguments,
                session.under_dmtcp.environment(self._environment(hash_seed)),
                session.cwd,
                session.under_dmtcp.launch,
            )
        except SandboxError as error:
            how = await self._end_of(executor) or str(error)
            session.log.error("executor: %s", self._last_words.rstrip() or how)
            raise _NotStarted(explain(self._python, self._last_words, how)) from error
        finally:
            self._starting = False
        session.kernel_info = executor.hello["kernel_info"]
        if executor.hello["freezer"] and executor.hello["freezer"] not in session.limits:
            session.limits.append(executor.hello["freezer"])
        return executor

    async def _end_of(self, executor: Executor) -> str:
        """How a process ended that did not come up; "" if it was none."""
        with contextlib.suppress(asyncio.TimeoutError, SandboxError):
            if executor.pid:
                status = await asyncio.wait_for(
                    self._session.sandbox.wait_exit(executor.pid), _REAP_S
                )
                code = os.waitstatus_to_exitcode(status)
                return f"it ended with exit status {code}" if code >= 0 else f"signal {-code}"
            return ""
        return "it does not answer"

    def new(self) -> Executor:
        """Return one that is to be started or woken."""
        session = self._session
        session.incarnation += 1
        return Executor(session, session.incarnation, self._freeze_options)

    def _freeze_options(self) -> dict[str, int]:
        session = self._session
        return {
            # seen from inside a pid namespace, whoever is outside has no pid
            "supervisor_pid": 0 if session.sandbox.ids_kept else os.getpid(),
            "stop_timeout_ms": int(session.config.stop_timeout * 1000),
            "aside_limit": session.config.aside_limit,
            "difference_most": session.config.differences << 20,
            "hot_min": _HOT_MIN if session.config.unshare else 0,
            "hurry": int(session.router.is_awaited),
        }

    def hear(self, text: str) -> None:
        """Note output: of a process that does not come up, it says why."""
        if self._starting:
            self._last_words = (self._last_words + text)[-KEPT:]

    async def spawn_scratch(
        self, arguments: Sequence[str], fds: dict[int, int], hash_seed: str | None
    ) -> int:
        """Start a Python program beside the executor; return its pid. Raises SandboxError."""
        session = self._session
        with open(os.devnull, "r+b") as null:
            standard = dict.fromkeys((0, 1, 2), null.fileno())
            return await session.sandbox.spawn(
                [self._python, *arguments],
                self._environment(hash_seed or session.hash_seed),
                session.cwd,
                {**standard, **fds},
            )

    def _environment(self, hash_seed: str) -> dict[str, str]:
        env = dict(os.environ)
        if not env.get("PYTHONHASHSEED", "random").isdigit():
            env["PYTHONHASHSEED"] = env[OWN_SEED] = hash_seed
        # the executor's parent is the sandbox's init, and ends it itself
        env.pop("JPY_PARENT_PID", None)
        return env
