"""What a sandbox is to the supervisor: the contract, and the client of the init that both share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kernel_runtime.errors import SandboxError
from kernel_runtime.sandbox import starter
from kernel_runtime.sandbox.refusals import explain

_START_S = 30.0


class Sandbox(Protocol):
    """Where executors live. Owns every process of the session; holds no history."""

    name: str  # shown to the user and written in status: never rename
    ids_kept: bool  # whether a woken process can have its old process and thread ids
    clock_ahead_ns: int  # by how much the monotonic clock inside is ahead of the machine's

    async def start(self) -> None:
        """Set it up. Raises SandboxError; then nothing is left behind."""

    async def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        fds: Mapping[int, int],
        *,
        capabilities: str = "",
        past_id: int = 0,
        nice: int = 0,
    ) -> int:
        """Start a program as a session leader; fds maps its descriptor numbers to ours.

        capabilities: ``all`` for a program that does not come from inside; else what cells have.
        past_id: its pid and those given after it shall be greater, where ids can be had. nice: is
        added to its priority.

        Returns its pid as seen inside. Raises SandboxError if it cannot be executed.
        """

    async def kill_all_but(self, keep: Sequence[int]) -> None:
        """SIGKILL every process inside but keep (pids inside); return when all are reaped."""

    async def signal(self, pid: int, signum: int, *, group: bool) -> None:
        """Send a signal to a process inside, or to its process group. A dead one is no error."""

    async def wait_exit(self, pid: int) -> int:
        """Return the wait status of a direct child of init, once it was reaped."""

    def forget_exits(self) -> None:
        """Forget the wait statuses so far: ids of ended processes are about to live again."""

    async def request(self, op: str, pass_fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Ask for an operation of kernel_runtime.sandbox.environment. Raises SandboxError."""

    @property
    def root(self) -> str:
        """The root directory of the processes inside, as the supervisor sees it."""

    def proc(self, pid: int | str = "") -> str:
        """Return the /proc directory of a process inside, as the supervisor can read it."""

    async def close(self) -> None:
        """Kill everything and take the sandbox down. The second call does nothing."""


class InitClient:
    """A sandbox whose processes belong to kernel_runtime.sandbox.init; a subclass is a mode."""

    name = ""
    mode = ""
    ids_kept = False
    capabilities = "limited"
    """What root's programs may do: ``limited`` or ``all`` (init.ROOT_KEEPS)."""
    clock_ahead_ns = 0
    """Set before the start to what is wished, afterwards what it is."""

    def __init__(self, on_exit: Callable[[int, int], None], on_lost: Callable[[], None]) -> None:
        """on_exit(pid, status) is called for each reaped child of init, also for orphans;
        on_lost() when init itself is gone, after it was up."""
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._control: socket.socket | None = None
        self._starter: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._next = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._exits: dict[int, int] = {}
        self._exit_waiters: dict[int, asyncio.Future[int]] = {}
        self._up: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._pid = 0
        self._starter, self._control, *_ = starter.take(self.mode, self.clock_ahead_ns)
        loop = asyncio.get_running_loop()
        self._up = loop.create_future()
        loop.add_reader(self._control, self._readable)
        try:
            await asyncio.wait_for(self._up, _START_S)
            if self.mode != "none":
                # the starter leaves once process 1 exists; init is the supervisor's own child then
                await asyncio.to_thread(self._starter.wait)
            if self.clock_ahead_ns:
                self.clock_ahead_ns = _clock_ahead_ns(self._pid)
        except BaseException:
            await self.close()
            raise

    def _readable(self) -> None:
        assert self._control is not None
        while True:
            try:
                data = self._control.recv(1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone()
                return
            self._dispatch(json.loads(data))

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "re" in message:
            # a new process: what ended under its id so far was another. Here, since its own end may
            # have been read by the time that whoever spawned it goes on
            self._exits.pop(message.get("pid", 0), None)
            future = self._answers.pop(message["re"], None)
            if future and not future.done():
                future.set_result(message)
        elif "exit" in message:
            pid, status = message["exit"], message["status"]
            waiter = self._exit_waiters.pop(pid, None)
            if waiter and not waiter.done():
                waiter.set_result(status)
            else:
                self._exits[pid] = status
            self._on_exit(pid, status)
        elif "pid" in message:
            self._pid = message["pid"]
        elif self._up and not self._up.done():
            if "ready" in message:
                self._up.set_result(None)
            else:
                why = explain(message["refused"], message["error"])
                self._up.set_exception(SandboxError(str(why)))

    def _gone(self) -> None:
        assert self._control is not None
        asyncio.get_running_loop().remove_reader(self._control)
        error = SandboxError("The sandbox's init process is gone.")
        futures: list[asyncio.Future[Any]] = [*self._answers.values(), *self._exit_waiters.values()]
        if self._up:
            futures.append(self._up)
        for future in futures:
            if not future.done():
                future.set_exception(error)
        self._answers.clear()
        self._exit_waiters.clear()
        if self._up is not None and self._up.exception() is None:
            self._on_lost()

    async def request(self, op: str, pass_fds: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Ask init for an operation. Raises SandboxError with its reason, or if it is gone."""
        if self._control is None:
            raise SandboxError("The sandbox is not running.")
        self._next += 1
        message = json.dumps({"op": op, "id": self._next, **fields}).encode()
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._next] = future
        try:
            socket.send_fds(self._control, [message], list(pass_fds))
        except OSError as error:
            self._answers.pop(self._next, None)
            raise SandboxError(f"The sandbox's init process does not answer: {error}") from error
        answer = await future
        if "error" in answer:
            raise SandboxError(answer["text"])
        return answer

    async def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        fds: Mapping[int, int],
        *,
        capabilities: str = "",
        past_id: int = 0,
        nice: int = 0,
    ) -> int:
        answer = await self.request(
            "spawn",
            list(fds.values()),
            argv=list(argv),
            env=dict(env),
            cwd=cwd,
            fds=list(fds.keys()),
            capabilities=capabilities or self.capabilities,
            past_id=past_id,
            nice=nice,
        )
        pid: int = answer["pid"]
        return pid

    async def kill_all_but(self, keep: Sequence[int]) -> None:
        await self.request("kill", keep=list(keep))

    async def signal(self, pid: int, signum: int, *, group: bool) -> None:
        with contextlib.suppress(SandboxError):
            await self.request("signal", pid=pid, signal=signum, group=group)

    async def wait_exit(self, pid: int) -> int:
        if pid in self._exits:
            return self._exits[pid]
        waiter = self._exit_waiters.get(pid)
        if waiter is None:
            waiter = self._exit_waiters[pid] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(waiter)

    def forget_exits(self) -> None:
        """Processes are about to live again under the ids of those that ended."""
        self._exits.clear()

    def proc(self, pid: int | str = "") -> str:
        # the sandbox's own /proc, through its init's root directory: no translating of pids
        return f"{self.root}/proc/{pid}"

    @property
    def root(self) -> str:
        """The root directory of the processes inside, as the supervisor sees it."""
        return f"/proc/{self._pid}/root"

    async def close(self) -> None:
        if self._control is None:
            return
        control, self._control = self._control, None
        with contextlib.suppress(OSError, ValueError):
            asyncio.get_running_loop().remove_reader(control)
        control.close()
        if self._starter:
            await asyncio.to_thread(self._starter.wait)
        if self._pid and self.mode != "none":
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
            # the supervisor is a subreaper: init became its child when its starter left
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, self._pid, 0)


def _clock_ahead_ns(pid: int) -> int:
    """By how much a process's monotonic clock is ahead of this one's (time_namespaces(7))."""
    offsets = []
    for who in (pid, "self"):
        with contextlib.suppress(OSError), open(f"/proc/{who}/timens_offsets") as f:
            for name, seconds, nanoseconds in map(str.split, f):
                if name == "monotonic":
                    offsets.append(int(seconds) * 10**9 + int(nanoseconds))
    return offsets[0] - offsets[1] if len(offsets) == 2 else 0
