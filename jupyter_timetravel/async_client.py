"""``Client`` for asyncio: the same commands, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import ConnectionFileMixin

from jupyter_timetravel import commands
from jupyter_timetravel.client import DEFAULT_TIMEOUT_S
from jupyter_timetravel.commands import Command
from jupyter_timetravel.group_records import GroupRestored, GroupState
from jupyter_timetravel.over_kernel import AsyncKernelCarrier
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
    Result,
    ShownFile,
    ShownVariable,
    Status,
    Verified,
)
from jupyter_timetravel.wire import EventReader, no_history
from kernel_runtime.supervisor.restore_request import Only, RestoreRequest
from kernel_runtime.timeline.groups import GroupRecord
from kernel_runtime.timeline.names import Spec

T = TypeVar("T")


class AsyncEventStream(Protocol):
    """What a carrier's ``listen`` returns; ``client.EventStream`` says the same in blocking."""

    async def next(self, timeout: float | None) -> Result | None: ...

    async def close(self) -> None: ...


class AsyncCarrier(Protocol):
    """How commands get to a session; ``client.Carrier`` says what each does and raises."""

    async def ask(self, command: Command[Any], timeout: float) -> Result: ...

    async def listen(self, timeout: float) -> AsyncEventStream: ...

    async def aclose(self) -> None: ...

    def close(self) -> None: ...


class AsyncClient:
    """Commands of the time-travel protocol; ``Client`` says what each does and raises.

    One command at a time: tasks that share a client wait for each other.
    """

    def __init__(
        self, kernel_client: ConnectionFileMixin, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._begin(AsyncKernelCarrier(kernel_client), timeout)

    def _begin(self, carrier: AsyncCarrier, timeout: float) -> None:
        self.timeout = timeout
        self._carrier = carrier

    @classmethod
    def from_connection_file(
        cls, path: str | Path, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> AsyncClient:
        """A client of the running kernel that wrote this connection file."""
        kernel_client = AsyncKernelClient(connection_file=str(path))
        kernel_client.load_connection_file()
        return cls(kernel_client, timeout=timeout)

    @classmethod
    async def at(
        cls,
        url: str,
        *,
        token: str | None = None,
        kernel: str | None = None,
        notebook: str | None = None,
        session: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> AsyncClient:
        """See ``Client.at``."""
        from jupyter_timetravel.over_http import AsyncHttpCarrier

        carrier = AsyncHttpCarrier(url, token)
        try:
            await carrier.choose(kernel=kernel, notebook=notebook, session=session, timeout=timeout)
        except BaseException:
            await carrier.aclose()
            raise
        client = cls.__new__(cls)
        client._begin(carrier, timeout)
        return client

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the connection; the kernel runs on. The second call does nothing."""
        self._carrier.close()

    async def aclose(self) -> None:
        """The same, and wait until it is closed."""
        await self._carrier.aclose()

    async def status(self) -> Status:
        """See ``Client.status``."""
        return await self._call(commands.status())

    async def list(self, include_auto: bool = True, history: Spec | None = None) -> list[Record]:
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
        partial: bool = False,
        reseed: bool = False,
    ) -> RestoreResult:
        """See ``Client.restore``."""
        asked = RestoreRequest(checkpoint, only, dry_run, undo, force, compensate, partial, reseed)
        return await self._call(commands.restore(asked))

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

    async def resume(self, force: bool = False, reseed: bool = False) -> RestoreResult:
        """See ``Client.resume``."""
        return await self._call(commands.resume(force, reseed))

    async def verify(self, checkpoint: Spec | None = None) -> tuple[Verified, ...]:
        """See ``Client.verify``."""
        return await self._call(commands.verify(checkpoint))

    async def diff(self, a: Spec, b: Spec | None = None) -> Differences:
        """See ``Client.diff``."""
        return await self._call(commands.diff(a, b))

    async def label(self, checkpoint: Spec, label: str | None) -> Record:
        """See ``Client.label``."""
        return await self._call(commands.label(checkpoint, label))

    async def comment(self, checkpoint: Spec, comment: str) -> Record:
        """See ``Client.comment``."""
        return await self._call(commands.comment(checkpoint, comment))

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

    async def groups(self) -> tuple[GroupState, ...]:
        """See ``Client.groups``."""
        return await self._call(commands.groups())

    async def group(self, name: str) -> GroupState:
        """See ``Client.group``."""
        return await self._call(commands.group(name))

    async def create_group(self, name: str, *members: str) -> GroupState:
        """See ``Client.create_group``."""
        return await self._call(commands.create_group(name, members))

    async def checkpoint_group(
        self, name: str, comment: str = "", allow_partial: bool = False, wait: float = 20.0
    ) -> GroupRecord:
        """See ``Client.checkpoint_group``."""
        return await self._call(commands.checkpoint_group(name, comment, allow_partial, wait))

    async def restore_group(
        self,
        name: str,
        record: int | str | None = None,
        member: str | None = None,
        undo: bool = False,
        dry_run: bool = False,
        allow_partial: bool = False,
        wait: float = 20.0,
    ) -> GroupRestored:
        """See ``Client.restore_group``."""
        return await self._call(
            commands.restore_group(name, record, member, undo, dry_run, allow_partial, wait)
        )

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:
        """Iterate over the events from now on, until ``timeout`` seconds pass without one.

        Listening begins before this returns: ``async for event in await client.events(): …``.
        The records of events carry no history; ``get`` has it.
        """
        stream = await self._carrier.listen(self.timeout)
        return self._iterate(stream, timeout)

    @staticmethod
    async def _iterate(stream: AsyncEventStream, timeout: float | None) -> AsyncIterator[Event]:
        reader = EventReader(no_history)
        try:
            while (content := await stream.next(timeout)) is not None:
                yield reader.read_content(content)
        finally:
            await stream.close()

    async def ask(self, command: Command[Any]) -> Result:
        """See ``Client.ask``."""
        return await self._carrier.ask(command, self.timeout)

    async def _call(self, command: Command[T]) -> T:
        return command.read(await self.ask(command))
