"""The kernels of a Jupyter server, and links to them.

A link to a kernel is made when something is asked of it, and costs the kernel nothing while nobody
asks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_core.utils import ensure_async
from jupyter_server.gateway.managers import GatewayKernelManager

from jupyter_timetravel.offline.stored import NoSuchSession, NotRunning
from jupyter_timetravel.over_kernel import JOIN_ATTEMPTS, JOIN_WAIT_S
from jupyter_timetravel.server.gateway import GatewayLink
from jupyter_timetravel.server.link import EVENT_TOPIC, Link, gone, not_heard
from jupyter_timetravel.wire import read_message

_FIRST_WAIT_S: Final = 0.01


class Kernels:
    """The links to all kernels of a server."""

    def __init__(self, kernel_manager: Any) -> None:
        self._manager = kernel_manager
        self._links: dict[str, Link] = {}

    def __contains__(self, kernel_id: str) -> bool:
        return kernel_id in self._manager.list_kernel_ids()

    def ids(self) -> list[str]:
        """Of the kernels that the server has."""
        return list(self._manager.list_kernel_ids())

    def link(self, kernel_id: str) -> Link:
        """Raises NoSuchSession, NotRunning while it starts."""
        try:
            manager = self._manager.get_kernel(kernel_id)
        except KeyError:
            raise no_kernel(kernel_id) from None
        link = self._links.get(kernel_id)
        if link is not None and link.is_of_the_present():
            return link
        self.drop(kernel_id)
        if isinstance(manager, GatewayKernelManager):
            link = GatewayLink(kernel_id)
        elif manager.get_connection_info().get("control_port"):
            link = ZmqLink(manager.get_connection_info(), _Running(self._manager, kernel_id))
        else:
            raise NotRunning(
                f"The kernel {kernel_id} is still starting. Nothing was done; ask again soon."
            )
        self._links[kernel_id] = link
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


class ZmqLink(Link):
    """Over a connection of its own to a kernel of this server."""

    def __init__(self, connection: Any, running: _Running) -> None:
        self._running = running
        self._process = running.process()
        self._connection = AsyncKernelClient()
        self._connection.load_connection_info(connection)
        super().__init__(self._connection.session)
        self._control: Any = self._connection.connect_control()
        self._reader = asyncio.get_running_loop().create_task(self._read())
        self._is_closed = False

    def is_of_the_present(self) -> bool:
        return self._running.process() == self._process

    def close(self) -> None:
        self._is_closed = True
        self._reader.cancel()
        self._give_up()
        self._connection.context.destroy(linger=0)

    async def _look(self) -> None:
        if not await self._running.is_alive() or not self.is_of_the_present():
            raise gone()

    async def _send(self, message: dict[str, Any]) -> None:
        # Not Session.send: behind the back of the asyncio socket it would take the notice away
        # that an answer has come, for which the reader waits.
        await self._control.send_multipart(self._session.serialize(message))

    async def _read(self) -> None:
        while True:
            frames = await self._control.recv_multipart()
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not for us
                self._on_answer(read_message(self._session, frames))

    @asynccontextmanager
    async def _published(self, only_events: bool) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        session = self._session.clone()
        socket: Any = self._connection.connect_iopub()
        try:
            await self._join(socket)
            if only_events:  # in this order nothing is missed
                socket.subscribe(EVENT_TOPIC.encode())
                socket.unsubscribe(b"")
            yield self._messages(socket, session)
        finally:
            socket.close(linger=0)

    async def _messages(self, socket: Any, session: Any) -> AsyncIterator[dict[str, Any]]:
        while True:
            try:
                frames = await socket.recv_multipart()
            except (asyncio.CancelledError, zmq.ZMQError):
                if self._is_closed:  # the socket went with its link
                    raise gone() from None
                raise
            with contextlib.suppress(ValueError):
                yield read_message(session, frames)

    async def _join(self, socket: Any) -> None:
        """Wait until a socket is known to get messages: what was sent before is lost."""
        wait = _FIRST_WAIT_S
        for _ in range(JOIN_ATTEMPTS):
            await self._provoke()
            if await socket.poll(int(wait * 1000)):
                return
            wait = min(2 * wait, JOIN_WAIT_S)
        raise not_heard()
