"""One executor: how it is started or woken, what it reports, how it is frozen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kernel_runtime.engines.base import Frozen, Waker, Woken
from kernel_runtime.engines.difference import Place
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.frames import Channel, Frame, Kind
from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.supervisor.link import ExecutorLink
from kernel_runtime.supervisor.output import OutputPipe
from kernel_runtime.timeline.model import Note


def _our_descriptors() -> tuple[int, int, int]:
    """Numbers in the executor: out of the way of what programs expect to be low."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first = 200 if limit > 256 else max(8, limit - 8)
    return first, first + 1, first + 2


LINK_FD, OUT_FD, ERR_FD = _our_descriptors()

_BOOT = Path(__file__).resolve().parents[1] / "executor" / "boot.py"
_HELLO_S = 120.0
"""Seconds that a fresh interpreter may take to start (a cold network filesystem)."""

_WAKE_S = 20.0
_FREEZE_S = 60.0


class CommandFailed(ConnectionError):
    """The process runs on, but an error that nobody thought of came of what it was asked."""


class Listener(Protocol):
    """Whoever is told what an executor says."""

    def on_message(self, executor: Executor, channel: Channel, parts: list[bytes]) -> None:
        """A Jupyter message came."""

    def on_stream(self, name: str, parent: bytes, text: str) -> None:
        """Python code printed."""

    def on_raw_output(self, name: str, text: str) -> None:
        """C code or a child process wrote to descriptor 1 or 2."""

    def on_request(self, executor: Executor, report: dict[str, Any]) -> None:
        """A magic asks for something."""

    def on_history(self, executor: Executor, report: dict[str, Any]) -> None:
        """It reports lines for IPython's history, or asks for some."""

    def on_effects(self, executor: Executor, report: dict[str, Any]) -> None:
        """It tells what a cell did outside of the session."""

    def on_exit_asked(self) -> None:
        """A cell has called ``exit``."""

    def on_log(self, level: int, text: str) -> None:
        """The kernel in the executor logged."""

    def on_end(self, executor: Executor) -> None:
        """Its link is closed: it died, or it was moved or killed on purpose."""


class Executor:
    """The live process, or one that was. Implements engines.base.LiveExecutor."""

    def __init__(
        self, listener: Listener, incarnation: int, freeze_options: Callable[[], dict[str, int]]
    ) -> None:
        self.incarnation = incarnation
        self.pid = 0
        self.hello: dict[str, Any] = {}
        self.alive = True
        self.end_expected = False
        self.exit_asked = False
        self.requests = 0
        """How many cells were handed to it."""
        self.magics = 0
        """How many of its magics wait for their answer; meanwhile it obeys commands."""
        self._listener = listener
        self._options = freeze_options
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reports: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._moving: dict[str, Any] = {}
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.link = ExecutorLink(ours, self._on_frame, self._on_end)
        self.pipes = [
            OutputPipe(name, listener.on_raw_output, self.link.read)
            for name in ("stdout", "stderr")
        ]

    # Life

    async def start(
        self,
        sandbox: Sandbox,
        python: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        launch: Callable[[list[str]], Awaitable[list[str]]] | None = None,
    ) -> None:
        """Start a fresh one. Raises SandboxError; then nothing is left of it.

        launch: makes the command line that runs a program under whatever the engine needs.
        """
        argv = [
            python,
            str(_BOOT),
            f"--ExecutorApp.link_fd={LINK_FD}",
            f"--ExecutorApp.out_fd={OUT_FD}",
            f"--ExecutorApp.err_fd={ERR_FD}",
            *arguments,
        ]
        try:
            argv = await launch(argv) if launch is not None else argv
        except BaseException:
            self.close()
            raise
        out, err = (pipe.write_end for pipe in self.pipes)
        with open(os.devnull) as null:
            fds = {0: null.fileno(), 1: out, 2: err}
            ours = {LINK_FD: self._theirs.fileno(), OUT_FD: out, ERR_FD: err}
            try:
                self.pid = await sandbox.spawn(argv, env, cwd, {**fds, **ours})
            except BaseException:
                self.close()
                raise
        self._handed_over()
        try:
            self.hello = await asyncio.wait_for(asyncio.shield(self._ready), _HELLO_S)
        except (asyncio.TimeoutError, ConnectionError) as error:
            self.close()
            raise SandboxError(
                f"The Python of this kernel ({python}) did not start: "
                f"{str(error) or 'it does not answer'}. See the server's log for its output; "
                "is ipykernel 7 or newer installed for it?"
            ) from error

    async def wake(self, engine: Waker, frozen: Frozen) -> Woken:
        """Start as successor of a frozen process. Raises RestoreFailed; then nothing is left."""
        fds = [self._theirs.fileno(), *(pipe.write_end for pipe in self.pipes)]
        try:
            woken = await engine.wake(frozen, fds)
        except BaseException:
            self.close()
            raise
        self.pid = woken.pid
        self._handed_over()
        try:
            self.hello = await asyncio.wait_for(asyncio.shield(self._ready), _WAKE_S)
        except (asyncio.TimeoutError, ConnectionError) as error:
            self.close()
            raise RestoreFailed(
                f"The process woken from frozen process {frozen.pid} does not answer"
                + (f" ({error})." if str(error) else ".")
            ) from error
        return woken

    def _handed_over(self) -> None:
        self._theirs.close()
        for pipe in self.pipes:
            pipe.handed_over()

    def close(self) -> None:
        """Cut the link and the pipes; the process itself is the sandbox's to end."""
        self.alive = False
        self.link.close()
        self._theirs.close()
        for pipe in self.pipes:
            pipe.close()
        self._fail_waiters()

    def drain(self) -> None:
        """Take in what it said last, before it is given up."""
        self.link.read()
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.read()

    def process_ended(self) -> None:
        """Init has reaped it. Processes that it forked may hold its link open all the same."""
        if self.alive:
            self.link.read()
        if self.alive:
            self.link.close()
            self._on_end()

    # Reports

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.STREAM:
            name, parent, text = frame.parts
            self._listener.on_stream(name.decode(), parent, text.decode("utf-8", "replace"))
        elif frame.kind == Kind.MESSAGE:
            self._listener.on_message(self, Channel(frame.channel), frame.parts)
        elif frame.kind == Kind.REPORT:
            self._on_report(frame.json())

    def _on_report(self, report: dict[str, Any]) -> None:
        kind = report["report"]
        if kind == "hello":
            if not self._ready.done():
                self._ready.set_result(report)
        elif kind == "log":
            self._listener.on_log(report["level"], report["text"])
        elif kind == "request":
            self._listener.on_request(self, report)
        elif kind == "history":
            self._listener.on_history(self, report)
        elif kind == "effects":
            self._listener.on_effects(self, report)
        elif kind == "exit_asked":
            self.exit_asked = True
            self._listener.on_exit_asked()
        elif kind == "moving":
            self._moving = report
        elif kind == "failed":
            self._on_failed(report)
        elif (future := self._reports.pop(report["id"], None)) and not future.done():
            future.set_result(report)

    def _on_failed(self, report: dict[str, Any]) -> None:
        error = CommandFailed(report["error"])
        # a woken process that could not take its first steps answers what its ancestor was asked
        future = self._reports.pop(report["id"], None) if self._ready.done() else self._ready
        if future is not None and not future.done():
            future.set_exception(error)
        else:
            self._listener.on_log(logging.WARNING, str(error))

    def _on_end(self) -> None:
        self.alive = False
        for pipe in self.pipes:
            pipe.read()
        self._fail_waiters()
        self._listener.on_end(self)

    def _fail_waiters(self) -> None:
        for future in [self._ready, *self._reports.values()]:
            if not future.done():
                future.set_exception(ConnectionError("the process ended"))
                future.exception()  # it may be that nobody waits any more
        self._reports.clear()

    async def _ask(self, command: str, fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        self._next += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reports[self._next] = future
        self.link.command(command, fds, id=self._next, **fields)
        if self.link.closed:
            self._fail_waiters()
        return await future

    async def variables(self) -> dict[str, Any]:
        """Return the summary of its namespace as it is now. Raises ConnectionError if it ends."""
        answer = await self._ask("variables")
        summary: dict[str, Any] = answer["variables"]
        return summary

    async def park(self) -> dict[str, Any]:
        """Have it wait, for a checkpoint that others make. Raises CheckpointRefused."""
        try:
            return await self._ask("park")
        except CommandFailed as error:
            raise CheckpointRefused(_not_frozen(error)) from error
        except ConnectionError as error:
            raise CheckpointRefused("The process ended before it was checkpointed.") from error

    async def park_aside(self, control: int) -> dict[str, int]:
        """Have it wait at a socket, for a dump that others make; return the inodes of what it has
        from outside, by name (engines/criu_tree.py). Raises CheckpointRefused."""
        try:
            answer = await asyncio.wait_for(self._ask("park_aside", [control]), _FREEZE_S)
        except (ConnectionError, asyncio.TimeoutError) as error:
            raise CheckpointRefused(
                f"The child processes could not be captured: {error or 'the process is busy'}."
            ) from error
        outside: dict[str, int] = answer["outside"]
        return outside

    def unpark(self, stand_in: int | None = None) -> None:
        """Have it go on. One that is gone is no error.

        stand_in: a socket at which a fork of it is to wait, see executor/stand_in.py.
        """
        fds = [] if stand_in is None else [stand_in]
        self.link.command("unpark", fds, stand_in=stand_in is not None)

    async def versions(self, modules: Sequence[str]) -> dict[str, Any]:
        """Return which of these are loaded in which version. Raises ConnectionError."""
        return await self._ask("versions", modules=list(modules))

    async def reseed(self) -> list[str]:
        """Have it seed generators of random numbers anew; return which. Raises ConnectionError."""
        answer = await self._ask("reseed")
        done: list[str] = answer["done"]
        return done

    async def load_namespace(self, channel: int) -> None:
        """Have it load variables over a channel. Raises ConnectionError if it ends."""
        await self._ask("load_namespace", [channel])

    def regain_huge_pages(self) -> None:
        """Have it make huge pages whole again, while it has nothing else to do."""
        self.link.command("regain_huge_pages")

    async def compensations(self, ids: Sequence[str]) -> list[str]:
        """Return which of these undos can be run in it. Raises ConnectionError."""
        answer = await self._ask("compensations", ids=list(ids))
        known: list[str] = answer["known"]
        return known

    # engines.base.LiveExecutor

    @property
    def differences(self) -> bool:
        """Whether the user lets freezes be noted."""
        return self._options()["difference_most"] > 0

    async def freeze(
        self,
        listener: int,
        address: str,
        *,
        move: bool,
        hold: int | None = None,
        difference: Place | None = None,
        base: int = 0,
    ) -> Frozen:
        """Have it freeze itself; see the protocol."""
        self._moving = {}
        self.end_expected = move
        file, at = difference if difference is not None else (None, 0)
        try:
            # the clock is the same on both sides: a command that is read too late is not obeyed
            until = time.clock_gettime(time.CLOCK_BOOTTIME) + _FREEZE_S
            report = await asyncio.wait_for(
                self._ask(
                    "freeze",
                    [fd for fd in (listener, hold, file) if fd is not None],
                    move=move,
                    until=until,
                    held=hold is not None,
                    base=None if file is None else base,
                    difference_at=at,
                    **self._options(),
                ),
                2 * _FREEZE_S,
            )
        except CommandFailed as error:
            self.end_expected = False
            raise CheckpointRefused(_not_frozen(error)) from error
        except ConnectionError as error:
            if move and self._moving:
                # gone as it should be: the frozen process waits at its address
                return Frozen("", 0, address, details={"variables": self._moving["variables"]})
            self.end_expected = False
            raise CheckpointRefused("The process ended while it was being frozen.") from error
        except asyncio.TimeoutError:
            self.end_expected = False
            raise CheckpointRefused(
                f"The process did not freeze within {_FREEZE_S:.0f} seconds. It runs on."
            ) from None
        if "error" in report:
            self.end_expected = False
            raise CheckpointRefused(report["error"])
        return Frozen(
            "",
            report["pid"],
            address,
            threads=report["threads"],
            pause_ms=report["pause_ns"] / 1e6,
            hot_bytes=report["hot_bytes"],
            rewritten_bytes=report["rewritten_bytes"],
            not_captured=[Note(*note) for note in report["notes"]],
            details=report,
        )


def _not_frozen(error: CommandFailed) -> str:
    return (
        f"The process could not be frozen: {error}. It runs on. Has a cell replaced a function of "
        "Python's own? Put it back."
    )
