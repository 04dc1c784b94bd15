"""Speaking to the kernels of a Jupyter server over their control channels, many requests at once.

A link to a kernel is made when something is asked of it, and costs the kernel nothing while nobody
asks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_core.utils import ensure_async
from jupyter_server.gateway.managers import GatewayKernelManager

from jupyter_timetravel import commands
from jupyter_timetravel.commands import VERSION
from jupyter_timetravel.offline.stored import NoSuchSession
from jupyter_timetravel.over_kernel import JOIN_ATTEMPTS, JOIN_WAIT_S
from jupyter_timetravel.records import Result
from jupyter_timetravel.server.errors import BehindGateway, NeedsKernel
from jupyter_timetravel.wire import (
    KernelGone,
    RequestTimeout,
    check_kernel_info,
    read_message,
    read_reply,
)

EVENT_TOPIC: Final = b"timetravel_event"
"""The kernel's socket sends what begins like that, and nothing else, to who asks for it only."""

_INTRODUCTION_S: Final = 10.0
"""Seconds for a kernel to answer what it is."""
_START_S: Final = 120.0
"""Seconds for its first process to start: before, it does not know what it is."""
_FIRST_WAIT_S: Final = 0.01
_LOOK_S: Final = 3.0
"""Seconds between two looks whether a kernel that is asked something is alive."""


class Kernels:
    """The links to all kernels of a server."""

    def __init__(self, kernel_manager: Any) -> None:
        self._manager = kernel_manager
        self._links: dict[str, KernelLink] = {}

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._manager.list_kernel_ids()

    def ids(self) -> list[str]:
        """Of the kernels that the server has."""
        return list(self._manager.list_kernel_ids())

    def link(self, kernel_id: str) -> KernelLink:
        """Raises NoSuchSession, BehindGateway, NeedsKernel while it starts."""
        try:
            manager = self._manager.get_kernel(kernel_id)
        except KeyError:
            raise no_kernel(kernel_id) from None
        running = _Running(self._manager, kernel_id)
        link = self._links.get(kernel_id)
        if link is not None and link.process == running.process():
            return link
        self.drop(kernel_id)  # a new process knows nothing of what the old one was told
        if isinstance(manager, GatewayKernelManager):
            raise BehindGateway(
                f"The kernel {kernel_id} runs behind a gateway, and this server has no connection "
                "of its own to it. Nothing was done. Ask the server that runs it, if it has "
                "jupyter_timetravel too; the magics and the sidebar work from here."
            )
        if not manager.get_connection_info().get("control_port"):
            raise NeedsKernel(
                f"The kernel {kernel_id} is still starting. Nothing was done; ask again soon."
            )
        self._links[kernel_id] = link = KernelLink(manager.get_connection_info(), running)
        return link

    def drop(self, kernel_id: str) -> None:
        """Close the link to a kernel that has ended."""
        link = self._links.pop(kernel_id, None)
        if link is not None:
            link.close()


def no_kernel(kernel_id: str) -> NoSuchSession:
    """The error for a kernel that the server does not have."""
    return NoSuchSession(
        f"The server has no kernel {kernel_id}. Nothing was done; GET /api/timetravel/sessions "
        "lists what there is."
    )


class _Running:
    """Whether a kernel of the server still is the process that was asked."""

    def __init__(self, kernel_manager: Any, kernel_id: str) -> None:
        self._manager = kernel_manager
        self._id = kernel_id

    def process(self) -> object:
        """Another value once the kernel was restarted."""
        try:
            provisioner = self._manager.get_kernel(self._id).provisioner
        except KeyError:
            return None
        return getattr(provisioner, "pid", None)

    async def is_alive(self) -> bool:
        try:
            return bool(await ensure_async(self._manager.is_alive(self._id)))
        except KeyError:
            return False


class KernelLink:
    """A connection of its own to one kernel."""

    def __init__(self, connection: Any, running: _Running) -> None:
        self._running = running
        self.process = running.process()
        self._connection = AsyncKernelClient()
        self._connection.load_connection_info(connection)
        self._control: Any = self._connection.connect_control()
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._reader = asyncio.get_running_loop().create_task(self._read())
        self._introduced = asyncio.Lock()
        self._is_known = False
        self._publishes = False
        self._is_closed = False

    def close(self) -> None:
        """Whoever still waits is told that the kernel is gone."""
        self._is_closed = True
        self._reader.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._gone())
        self._connection.context.destroy(linger=0)

    async def run(self, command: str, args: Mapping[str, Any]) -> Result:
        """Carry out a command, however long it takes.

        Raises the kernel's TimeTravelError, NoTimeTravel, RequestTimeout if the kernel does not say
        what it is, KernelGone.
        """
        async with self._introduced:
            if not self._is_known:
                check_kernel_info(await self._introduction())
                self._is_known = True
        content = {"version": VERSION, "command": command, "args": dict(args)}
        return read_reply(await self._ask("timetravel_request", content))

    async def _introduction(self) -> Mapping[str, Any]:
        """What the kernel says of itself, once it knows: one that starts does not at first."""
        for _ in range(int(_START_S / JOIN_WAIT_S)):
            asked = self._ask("kernel_info_request", {})
            try:
                told = await asyncio.wait_for(asked, _INTRODUCTION_S)
            except asyncio.TimeoutError:
                raise RequestTimeout("kernel_info", _INTRODUCTION_S) from None
            if "implementation" in told:
                return told
            await asyncio.sleep(JOIN_WAIT_S)
        raise RequestTimeout("kernel_info", _START_S)

    @asynccontextmanager
    async def messages(self, topic: bytes = b"") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """What the kernel publishes from now on: all of it, or events only (``EVENT_TOPIC``)."""
        session = self._connection.session.clone()
        socket: Any = self._connection.connect_iopub()
        try:
            await self._join(socket)
            if topic:  # in this order nothing is missed
                socket.subscribe(topic)
                socket.unsubscribe(b"")
            if not self._publishes:
                subscribe = commands.subscribe()
                await self.run(subscribe.name, subscribe.args)
                self._publishes = True
            yield self._messages(socket, session)
        finally:
            socket.close(linger=0)

    async def _messages(self, socket: Any, session: Any) -> AsyncIterator[dict[str, Any]]:
        while True:
            try:
                frames = await socket.recv_multipart()
            except (asyncio.CancelledError, zmq.ZMQError):
                if self._is_closed:  # the socket went with its link
                    raise self._gone() from None
                raise
            with contextlib.suppress(ValueError):
                yield read_message(session, frames)

    async def _join(self, socket: Any) -> None:
        """Wait until a socket is known to get messages: what was sent before is lost."""
        wait = _FIRST_WAIT_S
        for _ in range(JOIN_ATTEMPTS):
            # whoever asks a kernel what it is makes it publish that it is busy
            await self._send(self._connection.session.msg("kernel_info_request", {}))
            if await socket.poll(int(wait * 1000)):
                return
            wait = min(2 * wait, JOIN_WAIT_S)
        raise RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)

    async def _ask(self, msg_type: str, content: dict[str, Any]) -> Mapping[str, Any]:
        message = self._connection.session.msg(msg_type, content)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["header"]["msg_id"]] = future
        try:
            await self._send(message)
            while not (await asyncio.wait([future], timeout=_LOOK_S))[0]:
                alive = await self._running.is_alive()
                if not alive or self._running.process() != self.process:
                    raise self._gone()
            return future.result()
        finally:
            del self._waiting[message["header"]["msg_id"]]

    async def _send(self, message: dict[str, Any]) -> None:
        # Not Session.send: behind the back of the asyncio socket it would take the notice away
        # that an answer has come, for which the reader waits.
        await self._control.send_multipart(self._connection.session.serialize(message))

    async def _read(self) -> None:
        while True:
            frames = await self._control.recv_multipart()
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not for us
                reply = read_message(self._connection.session, frames)
                future = self._waiting.get(reply["parent_header"]["msg_id"])
                if future is not None and not future.done():
                    future.set_result(reply["content"])

    def _gone(self) -> KernelGone:
        return KernelGone("the request")
