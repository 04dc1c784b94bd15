"""Speaking to one kernel over its control channel, many requests at once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from jupyter_client.session import Session

from jupyter_timetravel import commands
from jupyter_timetravel.commands import VERSION
from jupyter_timetravel.over_kernel import JOIN_ATTEMPTS, JOIN_WAIT_S
from jupyter_timetravel.records import Result
from jupyter_timetravel.wire import KernelGone, RequestTimeout, check_kernel_info, read_reply

EVENT_TOPIC: Final = "timetravel_event"
"""The type of what the kernel publishes for who asks for events."""

_INTRODUCTION_S: Final = 10.0
"""Seconds for a kernel to answer what it is."""
_START_S: Final = 120.0
"""Seconds for its first process to start: before, it does not know what it is."""
_LOOK_S: Final = 3.0
"""Seconds between two looks whether a kernel that is asked something is alive."""


class Link(ABC):
    """A connection to one kernel; how messages travel is for the classes below."""

    def __init__(self, session: Session) -> None:
        """session: makes and signs the messages."""
        self._session = session
        self._waiting: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._introduced = asyncio.Lock()
        self._is_known = False
        self._publishes = False

    @abstractmethod
    def is_of_the_present(self) -> bool:
        """Whether it still leads to the kernel: one that was restarted knows nothing of it."""

    @abstractmethod
    def close(self) -> None:
        """Whoever still waits is told that the kernel is gone."""

    @abstractmethod
    async def _send(self, message: dict[str, Any]) -> None:
        """Send on the control channel; answers are given to ``_on_answer``."""

    @abstractmethod
    async def _look(self) -> None:
        """Raise KernelGone if what was asked will not be answered any more."""

    @abstractmethod
    def _published(
        self, only_events: bool
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """What the kernel publishes from the moment that this was entered."""

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

    @asynccontextmanager
    async def messages(
        self, only_events: bool = False
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """What the kernel publishes from now on: all of it, or ``timetravel_event`` alone."""
        async with self._published(only_events) as messages:
            if not self._publishes:
                subscribe = commands.subscribe()
                await self.run(subscribe.name, subscribe.args)
                self._publishes = True
            yield messages

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

    async def _provoke(self) -> None:
        """Make the kernel publish something: whoever asks it what it is makes it say "busy"."""
        await self._send(self._session.msg("kernel_info_request", {}))

    async def _ask(self, msg_type: str, content: dict[str, Any]) -> Mapping[str, Any]:
        message = self._session.msg(msg_type, content)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["header"]["msg_id"]] = future
        try:
            await self._send(message)
            while not (await asyncio.wait([future], timeout=_LOOK_S))[0]:
                await self._look()
            return future.result()
        finally:
            del self._waiting[message["header"]["msg_id"]]

    def _on_answer(self, message: Mapping[str, Any]) -> None:
        future = self._waiting.get(message["parent_header"].get("msg_id"))
        if future is not None and not future.done():
            future.set_result(message["content"])

    def _give_up(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(gone())


def gone() -> KernelGone:
    """The error for a request whose kernel has ended."""
    return KernelGone("the request")


def not_heard() -> RequestTimeout:
    """The error for a kernel whose publications do not arrive."""
    return RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)
