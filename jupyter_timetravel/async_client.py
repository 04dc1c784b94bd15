"""``Client`` for asyncio: the same commands, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import ConnectionFileMixin

from jupyter_timetravel import commands
from jupyter_timetravel.client import DEFAULT_TIMEOUT_S, JOIN_ATTEMPTS, JOIN_WAIT_S
from jupyter_timetravel.commands import Command, Only
from jupyter_timetravel.records import (
    Applied,
    Brought,
    CellRecord,
    Changes,
    Differences,
    DocumentCell,
    Event,
    Outside,
    Record,
    ReplayResult,
    ResetResult,
    RestoreResult,
    ShownFile,
    ShownVariable,
    Status,
    Verified,
)
from jupyter_timetravel.wire import (
    EventReader,
    RequestTimeout,
    check_kernel_info,
    is_answer_to,
    no_history,
    read_message,
    read_reply,
)
from kernel_runtime.timeline.names import Spec

T = TypeVar("T")


class AsyncClient:
    """Commands of the time-travel protocol; ``Client`` says what each does and raises.

    One command at a time: tasks that share a client wait for each other.
    """

    def __init__(
        self, kernel_client: ConnectionFileMixin, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.timeout = timeout
        self._connection = AsyncKernelClient()
        self._connection.load_connection_info(kernel_client.get_connection_info())
        self._control: Any = self._connection.connect_control()
        self._turn = asyncio.Lock()
        self._knows_kernel = False

    @classmethod
    def from_connection_file(
        cls, path: str | Path, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> AsyncClient:
        """A client of the running kernel that wrote this connection file."""
        kernel_client = AsyncKernelClient(connection_file=str(path))
        kernel_client.load_connection_file()
        return cls(kernel_client, timeout=timeout)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the kernel runs on. The second call does nothing."""
        self._connection.context.destroy(linger=0)

    async def status(self) -> Status:
        """See ``Client.status``."""
        return await self._call(commands.status())

    async def list(
        self, include_auto: bool = True, history: Spec | None = None
    ) -> Sequence[Record]:
        """See ``Client.list``."""
        return await self._call(commands.list_checkpoints(include_auto, history))

    async def get(self, checkpoint: Spec) -> Record:
        """See ``Client.get``."""
        return await self._call(commands.get(checkpoint))

    async def checkpoint(
        self, comment: str = "", label: str | None = None, pin: bool = False
    ) -> Record:
        """See ``Client.checkpoint``."""
        return await self._call(commands.checkpoint(comment, label, pin))

    async def restore(
        self,
        checkpoint: Spec = -1,
        only: Only | None = None,
        dry_run: bool = False,
        undo: bool = False,
        force: bool = False,
        compensate: bool = False,
    ) -> RestoreResult:
        """See ``Client.restore``."""
        return await self._call(
            commands.restore(checkpoint, only, dry_run, undo, force, compensate)
        )

    async def replay(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> ReplayResult:
        """See ``Client.replay``."""
        return await self._call(
            commands.replay(checkpoint, skip, until, stop_on_difference, dry_run)
        )

    async def cells(
        self, since: Spec | None = None, until: Spec | None = None
    ) -> Sequence[CellRecord]:
        """See ``Client.cells``."""
        return await self._call(commands.cells(since, until))

    async def bring(self, checkpoint: Spec, names: Sequence[str]) -> Brought:
        """See ``Client.bring``."""
        return await self._call(commands.bring(checkpoint, names))

    async def bring_files(self, checkpoint: Spec, *paths: str | Path) -> Brought:
        """See ``Client.bring_files``."""
        return await self._call(commands.bring_files(checkpoint, [str(path) for path in paths]))

    async def changes(self, *checkpoints: Spec) -> tuple[Changes, ...]:
        """See ``Client.changes``."""
        return await self._call(commands.changes(checkpoints))

    async def file(
        self, path: str, checkpoint: Spec | None = None, root: str | None = None
    ) -> ShownFile:
        """See ``Client.file``."""
        return await self._call(commands.file(path, checkpoint, root))

    async def show(self, checkpoint: Spec, *names: str) -> tuple[ShownVariable, ...]:
        """See ``Client.show``."""
        return await self._call(commands.show(checkpoint, names))

    async def keep_document(
        self, checkpoint: str, cells: Sequence[dict[str, Any]], trusted: bool = False
    ) -> bool:
        """See ``Client.keep_document``."""
        return await self._call(commands.keep_document(checkpoint, cells, trusted))

    async def document(self, checkpoint: Spec) -> tuple[DocumentCell, ...]:
        """See ``Client.document``."""
        return await self._call(commands.document(checkpoint))

    async def resume(self, force: bool = False) -> RestoreResult:
        """See ``Client.resume``."""
        return await self._call(commands.resume(force))

    async def verify(self, checkpoint: Spec | None = None) -> tuple[Verified, ...]:
        """See ``Client.verify``."""
        return await self._call(commands.verify(checkpoint))

    async def diff(self, a: Spec, b: Spec | None = None) -> Differences:
        """See ``Client.diff``."""
        return await self._call(commands.diff(a, b))

    async def label(self, checkpoint: Spec, label: str | None) -> Record:
        """See ``Client.label``."""
        return await self._call(commands.label(checkpoint, label))

    async def pin(self, checkpoint: Spec, pinned: bool = True) -> Record:
        """See ``Client.pin``."""
        return await self._call(commands.pin(checkpoint, pinned))

    async def delete(self, checkpoint: Spec) -> Record:
        """See ``Client.delete``."""
        return await self._call(commands.delete(checkpoint))

    async def config(self, **settings: Any) -> dict[str, Any]:
        """See ``Client.config``."""
        return await self._call(commands.config(settings))

    async def reset(self, process: bool = False) -> ResetResult:
        """See ``Client.reset``."""
        return await self._call(commands.reset(process))

    async def outside(self, each: bool = False) -> Outside:
        """See ``Client.outside``."""
        return await self._call(commands.outside(each))

    async def apply(
        self, *paths: str | Path, dry_run: bool = False, force: bool = False
    ) -> Applied:
        """See ``Client.apply``."""
        return await self._call(commands.apply([str(path) for path in paths], dry_run, force))

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:
        """Iterate over the events from now on, until ``timeout`` seconds pass without one.

        Listening begins before this returns: ``async for event in await client.events(): …``.
        The records of events carry no history; ``get`` has it.
        """
        session = self._connection.session.clone()
        socket: Any = self._connection.connect_iopub()
        reader = EventReader(no_history)
        try:
            early = await self._join(socket, session, reader)
            await self._call(commands.subscribe())
        except BaseException:
            socket.close(linger=0)
            raise
        return self._listen(socket, session, reader, early, timeout)

    async def _join(self, socket: Any, session: Any, reader: EventReader) -> Sequence[Event]:
        early = []
        for _ in range(JOIN_ATTEMPTS):
            request = self._connection.session.send(self._control, "kernel_info_request", {})
            deadline = time.monotonic() + JOIN_WAIT_S
            while await socket.poll(max(0, (deadline - time.monotonic()) * 1000)):
                message = read_message(session, await socket.recv_multipart())
                if event := reader.read(message):
                    early.append(event)
                if is_answer_to(message, request):
                    return early
        raise RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)

    @staticmethod
    async def _listen(
        socket: Any,
        session: Any,
        reader: EventReader,
        early: Sequence[Event],
        timeout: float | None,
    ) -> AsyncIterator[Event]:
        try:
            for event in early:
                yield event
            while await socket.poll(None if timeout is None else timeout * 1000):
                found = reader.read(read_message(session, await socket.recv_multipart()))
                if found is not None:
                    yield found
        finally:
            socket.close(linger=0)

    async def _call(self, command: Command[T]) -> T:
        async with self._turn:
            if not self._knows_kernel:
                info = await self._ask("kernel_info_request", {}, "kernel_info")
                check_kernel_info(info["content"])
                self._knows_kernel = True
            reply = await self._ask("timetravel_request", command.content, command.name)
        return command.read(read_reply(reply["content"]))

    async def _ask(self, msg_type: str, content: dict[str, Any], name: str) -> Mapping[str, Any]:
        session = self._connection.session
        request = session.send(self._control, msg_type, content)
        deadline = time.monotonic() + self.timeout
        while await self._control.poll(max(0, (deadline - time.monotonic()) * 1000)):
            reply = read_message(session, await self._control.recv_multipart())
            if is_answer_to(reply, request):
                return reply
        raise RequestTimeout(name, self.timeout)
