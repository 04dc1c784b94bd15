"""Carries commands over a kernel's own connection: its control channel, and IOPub for events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import ConnectionFileMixin

from jupyter_timetravel import commands
from jupyter_timetravel.commands import Command
from jupyter_timetravel.records import Result
from jupyter_timetravel.wire import (
    KernelGone,
    RequestTimeout,
    check_kernel_info,
    event_of,
    is_answer_to,
    read_message,
    read_reply,
)
from kernel_runtime.errors import BadRequest

LOOK_S: Final = 2.0
JOIN_ATTEMPTS: Final = 40
JOIN_WAIT_S: Final = 0.25


class KernelCarrier:
    """Blocking; ``Client`` uses it."""

    def __init__(
        self, kernel_client: ConnectionFileMixin, is_there: Callable[[], bool] | None = None
    ) -> None:
        self._is_there = is_there or (lambda: True)
        self._connection = BlockingKernelClient()
        self._connection.load_connection_info(kernel_client.get_connection_info())
        self._control = self._connection.connect_control()
        self._knows_kernel = False

    def close(self) -> None:
        """Close the connection, and the sockets of event streams with it."""
        self._connection.context.destroy(linger=0)

    def ask(self, command: Command[Any], timeout: float) -> Result:
        """What the kernel answers. Raises its TimeTravelError, NoTimeTravel, RequestTimeout,
        KernelGone; BadRequest for what no kernel can do."""
        _check_is_for_kernel(command)
        if not self._knows_kernel:
            told = self._send("kernel_info_request", {}, "kernel_info", timeout)
            check_kernel_info(told["content"])
            self._knows_kernel = True
        reply = self._send("timetravel_request", command.content, command.name, timeout)
        return read_reply(reply["content"])

    def listen(self, timeout: float) -> KernelEvents:
        """The events from now on. Raises what ``ask`` raises."""
        return KernelEvents(self, timeout)

    def _send(
        self, msg_type: str, content: dict[str, Any], name: str, timeout: float
    ) -> Mapping[str, Any]:
        session = self._connection.session
        request = session.send(self._control, msg_type, content)
        deadline = time.monotonic() + timeout
        while (now := time.monotonic()) < deadline:
            if not self._control.poll(_milliseconds(min(deadline, now + LOOK_S))):
                if not self._is_there():
                    raise KernelGone(name)
                continue
            reply = read_message(session, self._control.recv_multipart())
            # An answer that came after its request had been given up is for nobody.
            if is_answer_to(reply, request):
                return reply
        raise RequestTimeout(name, timeout)


class KernelEvents:
    """Contents of events, from the moment it was made."""

    def __init__(self, carrier: KernelCarrier, timeout: float) -> None:
        self._carrier = carrier
        # Each stream sees every message: with one memory of signatures they would be duplicates.
        self._session = carrier._connection.session.clone()
        self._socket = carrier._connection.connect_iopub()
        self._early: list[Result] = []
        try:
            self._join()
            carrier.ask(commands.subscribe(), timeout)
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Wait until this socket is known to get messages: what was sent before is lost."""
        session = self._carrier._connection.session
        requests = []  # on a machine with much to do it is an earlier one that is answered
        for _ in range(JOIN_ATTEMPTS):
            requests.append(session.send(self._carrier._control, "kernel_info_request", {}))
            deadline = time.monotonic() + JOIN_WAIT_S
            while self._socket.poll(_milliseconds(deadline)):
                message = read_message(self._session, self._socket.recv_multipart())
                if (content := event_of(message)) is not None:
                    self._early.append(content)
                if any(is_answer_to(message, request) for request in requests):
                    return
        raise RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)

    def next(self, timeout: float | None) -> Result | None:
        """The next one, or None if none comes within so many seconds."""
        if self._early:
            return self._early.pop(0)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._socket.poll(None if deadline is None else _milliseconds(deadline)):
            content = event_of(read_message(self._session, self._socket.recv_multipart()))
            if content is not None:
                return content
        return None

    def close(self) -> None:
        """Stop listening; the second call does nothing."""
        self._socket.close(linger=0)


class AsyncKernelCarrier:
    """For asyncio; ``AsyncClient`` uses it. One command at a time: others wait for their turn."""

    def __init__(self, kernel_client: ConnectionFileMixin) -> None:
        self._connection = AsyncKernelClient()
        self._connection.load_connection_info(kernel_client.get_connection_info())
        self._control: Any = self._connection.connect_control()
        self._turn = asyncio.Lock()
        self._knows_kernel = False

    def close(self) -> None:
        """See ``KernelCarrier.close``."""
        self._connection.context.destroy(linger=0)

    async def aclose(self) -> None:
        """The same."""
        self.close()

    async def ask(self, command: Command[Any], timeout: float) -> Result:
        """See ``KernelCarrier.ask``."""
        _check_is_for_kernel(command)
        async with self._turn:
            if not self._knows_kernel:
                info = await self._send("kernel_info_request", {}, "kernel_info", timeout)
                check_kernel_info(info["content"])
                self._knows_kernel = True
            reply = await self._send("timetravel_request", command.content, command.name, timeout)
        return read_reply(reply["content"])

    async def listen(self, timeout: float) -> AsyncKernelEvents:
        """See ``KernelCarrier.listen``."""
        events = AsyncKernelEvents(self)
        try:
            await events.join()
            await self.ask(commands.subscribe(), timeout)
        except BaseException:
            await events.close()
            raise
        return events

    async def _send(
        self, msg_type: str, content: dict[str, Any], name: str, timeout: float
    ) -> Mapping[str, Any]:
        session = self._connection.session
        request = session.send(self._control, msg_type, content)
        deadline = time.monotonic() + timeout
        while await self._control.poll(_milliseconds(deadline)):
            reply = read_message(session, await self._control.recv_multipart())
            if is_answer_to(reply, request):
                return reply
        raise RequestTimeout(name, timeout)


class AsyncKernelEvents:
    """See ``KernelEvents``."""

    def __init__(self, carrier: AsyncKernelCarrier) -> None:
        self._carrier = carrier
        self._session = carrier._connection.session.clone()
        self._socket: Any = carrier._connection.connect_iopub()
        self._early: list[Result] = []

    async def join(self) -> None:
        """Wait until this socket is known to get messages."""
        session = self._carrier._connection.session
        requests = []
        for _ in range(JOIN_ATTEMPTS):
            requests.append(session.send(self._carrier._control, "kernel_info_request", {}))
            deadline = time.monotonic() + JOIN_WAIT_S
            while await self._socket.poll(_milliseconds(deadline)):
                message = read_message(self._session, await self._socket.recv_multipart())
                if (content := event_of(message)) is not None:
                    self._early.append(content)
                if any(is_answer_to(message, request) for request in requests):
                    return
        raise RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)

    async def next(self, timeout: float | None) -> Result | None:
        """See ``KernelEvents.next``."""
        if self._early:
            return self._early.pop(0)
        deadline = None if timeout is None else time.monotonic() + timeout
        while await self._socket.poll(None if deadline is None else _milliseconds(deadline)):
            message = read_message(self._session, await self._socket.recv_multipart())
            if (content := event_of(message)) is not None:
                return content
        return None

    async def close(self) -> None:
        """See ``KernelEvents.close``."""
        self._socket.close(linger=0)


def _check_is_for_kernel(command: Command[Any]) -> None:
    if command.of_server:
        raise BadRequest(
            "Groups are asked of a Jupyter server, not of one kernel. Nothing was done; use "
            "Client.at(URL, …), or jupyter_timetravel.groups on the machine of the kernels."
        )


def _milliseconds(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))
