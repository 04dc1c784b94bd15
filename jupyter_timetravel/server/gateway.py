"""Speaking to a kernel behind a gateway, through the websocket that the gateway has for clients.

This server has no connection to such a kernel: what a page says to it goes through such a
websocket too. Not with jupyter_server's GatewayKernelClient, which sends no credentials and blocks
the server while it connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.utils import url_path_join
from tornado.escape import url_escape
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from jupyter_timetravel.over_kernel import JOIN_ATTEMPTS, JOIN_WAIT_S
from jupyter_timetravel.server.errors import BehindGateway
from jupyter_timetravel.server.link import EVENT_TOPIC, Link, gone, not_heard

_LARGEST: Final = 1 << 30
"""Bytes of a message: outputs of cells come through it too."""

_IDLE_S: Final = 60.0
"""Seconds after which one that nobody uses is closed: gateways do not cull kernels with clients."""

Published = asyncio.Queue[dict[str, Any] | None]
"""None is the end."""


class GatewayLink(Link):
    """One websocket for all that is asked; it is opened with the first request."""

    def __init__(self, kernel_id: str) -> None:
        super().__init__(Session())
        self._kernel_id = kernel_id
        self._opening = asyncio.Lock()
        self._socket: WebSocketClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._kernel_session = ""
        self._listeners: list[Published] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def is_of_the_present(self) -> bool:
        return not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._give_up()
        for listener in self._listeners:
            listener.put_nowait(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()

    async def _look(self) -> None:
        """A restart keeps the websocket; the new process answers under a session of its own."""
        if self._is_closed:
            raise gone()
        await self._provoke()

    def _close_if_idle(self) -> None:
        if self._waiting or self._listeners:
            self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._close_if_idle)
        else:
            self.close()

    async def _send(self, message: dict[str, Any]) -> None:
        socket = await self._opened()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._close_if_idle)
        message = {**message, "channel": "control", "buffers": []}
        try:
            await socket.write_message(json.dumps(message, default=json_default))
        except Exception as error:  # WebSocketClosedError, and what tornado lets through
            self.close()
            raise gone() from error

    async def _opened(self) -> WebSocketClientConnection:
        """Raises BehindGateway if the gateway does not open it."""
        async with self._opening:
            if self._is_closed:
                raise gone()
            if self._socket is None:
                client: Any = GatewayClient.instance()
                url = url_path_join(
                    client.ws_url or "",
                    client.kernels_endpoint,
                    url_escape(self._kernel_id),
                    f"channels?session_id={self._session.session}",
                )
                request = HTTPRequest(url, **client.load_connection_args())
                try:
                    self._socket = await websocket_connect(request, max_message_size=_LARGEST)
                except Exception as error:  # tornado lets everything through
                    self.close()
                    raise BehindGateway(
                        f"The kernel {self._kernel_id} runs behind a gateway, which does not open "
                        f"its channels to this server: {error or type(error).__name__}. Nothing "
                        "was done; check that the gateway runs, and that it knows the kernel."
                    ) from error
                self._reader = asyncio.get_running_loop().create_task(self._read(self._socket))
            return self._socket

    async def _read(self, socket: WebSocketClientConnection) -> None:
        try:
            while (text := await socket.read_message()) is not None:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._on_message(json.loads(text))
        finally:
            self.close()

    def _on_message(self, message: dict[str, Any]) -> None:
        channel, kernel_session = message["channel"], message["header"]["session"]
        if self._kernel_session not in ("", kernel_session):
            self.close()  # another process, which knows nothing of what this one was told
        elif channel == "control":
            self._kernel_session = kernel_session
            self._on_answer(message)
        elif channel == "iopub":
            for listener in self._listeners:
                listener.put_nowait(message)

    @asynccontextmanager
    async def _published(self, only_events: bool) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        listener: Published = asyncio.Queue()
        self._listeners.append(listener)
        try:
            await self._join(listener)
            yield self._messages(listener, only_events)
        finally:
            self._listeners.remove(listener)

    async def _messages(
        self, listener: Published, only_events: bool
    ) -> AsyncIterator[dict[str, Any]]:
        while (message := await listener.get()) is not None:
            if not only_events or message["header"]["msg_type"] == EVENT_TOPIC:
                yield message
        raise gone()

    async def _join(self, listener: Published) -> None:
        """Wait until the gateway hands on what the kernel publishes: what was before is lost."""
        for _ in range(JOIN_ATTEMPTS):
            await self._provoke()
            with contextlib.suppress(asyncio.TimeoutError):
                if await asyncio.wait_for(listener.get(), JOIN_WAIT_S) is None:
                    raise gone()
                return
        raise not_heard()
