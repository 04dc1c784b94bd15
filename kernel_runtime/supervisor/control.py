"""The control channel: answered by the supervisor, also while a cell runs or a restore goes on."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_runtime.supervisor.channels import Channels, Message
from kernel_runtime.supervisor.request import Request
from kernel_runtime.supervisor.session import Session, Waiting

if TYPE_CHECKING:
    import psutil


class Control:
    """Handlers of control messages, one method each: its name is the message type's first part."""

    def __init__(
        self, channels: Channels, session: Session, on_shutdown: Callable[[], None]
    ) -> None:
        self._channels = channels
        self._session = session
        self._on_shutdown = on_shutdown
        self._processes: dict[int, psutil.Process] = {}
        self._waiting: list[Waiting] = []
        session.control_waiting = lambda: list(self._waiting)
        session.receive_control = self.receive

    def receive(self, identities: list[bytes], message: Message, frames: list[bytes]) -> None:
        """Take one control message; each is handled in a task of its own."""
        waiting = (identities, frames)
        self._waiting.append(waiting)
        self._session.background(self._answer(waiting, message))

    async def _answer(self, waiting: Waiting, message: Message) -> None:
        self._session.asking.set(waiting)
        try:
            await self._handle(waiting[0], message, waiting[1])
        finally:
            self._waiting.remove(waiting)

    async def _handle(self, identities: list[bytes], message: Message, frames: list[bytes]) -> None:
        msg_type: str = message["header"]["msg_type"]
        if msg_type == "timetravel_request":
            # progress is told by events: a busy kernel would look as if a cell ran
            await self._session.started.wait()  # it is known by then who answers, and of what
            await self._session.commands.on_control(identities, message, json.loads(frames[3]))
            return
        handler = getattr(self, msg_type.removesuffix("_request"), None)
        if handler is None or not msg_type.endswith("_request"):
            # whatever else may be asked on control: the executor's, in order with the rest
            self._session.router.on_shell(identities, message, frames)
            return
        request = Request(identities, message, frames, json.loads(frames[3]))
        self._session.router.status("busy", request)
        content = await handler(request.content)
        reply_type = msg_type.replace("_request", "_reply")
        self._channels.send("control", reply_type, content, message, identities)
        if msg_type == "shutdown_request":
            self._channels.send("iopub", reply_type, content, message)
        self._session.router.status("idle", request)
        if msg_type == "shutdown_request":
            self._on_shutdown()

    async def kernel_info(self, content: dict[str, Any]) -> dict[str, Any]:
        """Known since the first executor came up; never waits for the present one."""
        return self._session.kernel_info_reply()

    async def interrupt(self, content: dict[str, Any]) -> dict[str, Any]:
        """Interrupt the running cell."""
        await self._session.interrupt()
        return {"status": "ok"}

    async def shutdown(self, content: dict[str, Any]) -> dict[str, Any]:
        """End the kernel."""
        await self._session.shutdown()
        return {"status": "ok", "restart": bool(content.get("restart", False))}

    async def connect(self, content: dict[str, Any]) -> dict[str, Any]:
        """The ports."""
        return {"status": "ok", **self._channels.ports}

    async def usage(self, content: dict[str, Any]) -> dict[str, Any]:
        """What the session uses: the executor and its children; frozen processes beside."""
        return await asyncio.to_thread(self._usage)

    def _usage(self) -> dict[str, Any]:
        import psutil  # not before somebody asks: it takes long, and a start is in a hurry

        session = self._session
        executor = session.executor
        psutil.PROCFS_PATH = session.sandbox.proc().rstrip("/")
        processes: list[psutil.Process] = []
        if executor is not None and executor.alive:
            try:
                live = psutil.Process(executor.pid)
                processes = [live, *live.children(recursive=True)]
            except psutil.Error:
                processes = []
        # the same objects as before: CPU use is measured from one call to the next
        self._processes = {p.pid: self._processes.get(p.pid, p) for p in processes}
        cpu = memory = 0.0
        for process in self._processes.values():
            try:
                cpu += process.cpu_percent(None)
                # the executor shares pages with its checkpoints: its own share would be too little
                own = executor is not None and process.pid == executor.pid
                info = process.memory_info().rss if own else process.memory_full_info().pss
                memory += info
            except psutil.Error:
                continue
        usage: dict[str, Any] = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "kernel_cpu": cpu,
            "kernel_memory": memory,
            "frozen_memory": session.memory.frozen_bytes,
            "cpu_count": psutil.cpu_count(logical=True),
            "host_virtual_memory": dict(psutil.virtual_memory()._asdict()),
        }
        percent = psutil.cpu_percent()
        if percent:
            usage["host_cpu_percent"] = percent
        return usage

    async def debug(self, content: dict[str, Any]) -> dict[str, Any]:
        """There is no debugger here (docs/limits.md)."""
        return {
            "type": "response",
            "request_seq": content.get("seq", 0),
            "success": False,
            "command": content.get("command", ""),
            "message": "This kernel has no debugger; see docs/limits.md.",
        }
