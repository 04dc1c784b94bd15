"""Time travel from outside: a client of any kernel that speaks docs/protocol.md.

    with Client(kernel_client) as timetravel:
        before = timetravel.checkpoint("before the join")
        ...
        timetravel.restore(before.number)

It has its own connection to the kernel's control channel (and to IOPub for events), so the
messages of the kernel client that it is made from stay where they are, for whoever waits for them.
``Client.at`` speaks to a kernel through a Jupyter server instead, by URL and token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import ConnectionFileMixin

from jupyter_timetravel import commands
from jupyter_timetravel.commands import Command
from jupyter_timetravel.group_records import GroupRestored, GroupState
from jupyter_timetravel.over_kernel import KernelCarrier
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
from jupyter_timetravel.wire import EventReader
from kernel_runtime.supervisor.restore_request import Only, RestoreRequest
from kernel_runtime.timeline.groups import GroupRecord
from kernel_runtime.timeline.names import Spec

T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0


class EventStream(Protocol):
    """What a carrier's ``listen`` returns."""

    def next(self, timeout: float | None) -> Result | None:
        """The content of the next event, or None if none comes within so many seconds."""

    def close(self) -> None:
        """Stop listening; the second call does nothing."""


class Carrier(Protocol):
    """How commands get to a session: ``KernelCarrier``, ``HttpCarrier``."""

    def ask(self, command: Command[Any], timeout: float) -> Result:
        """The result of a command. Raises TimeTravelError; RequestTimeout after so many seconds."""

    def listen(self, timeout: float) -> EventStream:
        """The events from now on."""

    def close(self) -> None:
        """Close the connection; the session stays. The second call does nothing."""


class Client:
    """Commands of the time-travel protocol, blocking.

    Each raises the TimeTravelError that the kernel answers with; NoTimeTravel if the kernel has
    none, RequestTimeout if there is no answer within ``timeout`` seconds.
    """

    def __init__(
        self,
        kernel_client: ConnectionFileMixin,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        is_there: Callable[[], bool] | None = None,
    ) -> None:
        """``kernel_client``: of any kind, or a kernel manager, with its connection loaded.

        is_there: asked now and then while an answer is awaited; False ends that with KernelGone.
        """
        self._begin(KernelCarrier(kernel_client, is_there), timeout)

    def _begin(self, carrier: Carrier, timeout: float) -> None:
        self.timeout = timeout
        self._carrier = carrier

    @classmethod
    def from_connection_file(
        cls,
        path: str | Path,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        is_there: Callable[[], bool] | None = None,
    ) -> Client:
        """A client of the running kernel that wrote this connection file."""
        kernel_client = BlockingKernelClient(connection_file=str(path))
        kernel_client.load_connection_file()
        return cls(kernel_client, timeout=timeout, is_there=is_there)

    @classmethod
    def at(
        cls,
        url: str,
        *,
        token: str | None = None,
        kernel: str | None = None,
        notebook: str | None = None,
        session: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Client:
        """A client of a session through the Jupyter server at ``url`` (with its base URL).

        token: of the server (default: ``$JUPYTER_TOKEN``). One of: kernel, the id of a running
        kernel; notebook, a path as the server names it (its running kernel, else what is stored);
        session, an id as the server lists it. Needs httpx. Raises ServerUnreachable, NotAllowed,
        NoSuchSession.
        """
        from jupyter_timetravel.over_http import HttpCarrier

        carrier = HttpCarrier(url, token)
        try:
            carrier.choose(kernel=kernel, notebook=notebook, session=session, timeout=timeout)
        except BaseException:
            carrier.close()
            raise
        client = cls.__new__(cls)
        client._begin(carrier, timeout)
        return client

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the kernel runs on. The second call does nothing."""
        self._carrier.close()

    # -- commands ---------------------------------------------------------------------------

    def status(self) -> Status:
        """Where the session stands: head, configuration, memory, engines, limits."""
        return self._call(commands.status())

    def list(self, include_auto: bool = True, history: Spec | None = None) -> list[Record]:
        """Checkpoints, oldest first: all, or ``history`` and its ancestors."""
        return self._call(commands.list_checkpoints(include_auto, history))

    def get(self, checkpoint: Spec) -> Record:
        """One checkpoint, with its variables."""
        return self._call(commands.get(checkpoint))

    def checkpoint(self, comment: str = "", label: str | None = None, pin: bool = False) -> Record:
        """Make a checkpoint; while a cell runs, after it."""
        return self._call(commands.checkpoint(comment, label, pin))

    def restore(
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
        """Bring the session back to a checkpoint, or with ``dry_run`` tell what that would change.

        ``undo`` goes back to before the last restore. A running cell is interrupted; with
        ``force`` its process is ended if it does not stop. ``compensate`` first runs what the
        cells in between have registered for that; if one fails, nothing is restored. A checkpoint
        that was imported or pulled is restored whole, or with ``partial`` as far as it can be. With
        ``reseed`` generators of random numbers are seeded anew: of two that restore one checkpoint
        each draws its own.
        """
        asked = RestoreRequest(checkpoint, only, dry_run, undo, force, compensate, partial, reseed)
        return self._call(commands.restore(asked))

    def replay(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> ReplayResult:
        """Restore a checkpoint and run again what had run after it, up to ``until``.

        A cell that runs is finished first. The answer comes after the last cell: give the client
        a ``timeout`` that is long enough. ``skip``: the checkpoints of cells to leave out.
        """
        return self._call(commands.replay(checkpoint, skip, until, stop_on_difference, dry_run))

    def cells(self, since: Spec | None = None, until: Spec | None = None) -> Sequence[CellRecord]:
        """The cells that led from a checkpoint (None: a fresh process) to another (None: now)."""
        return self._call(commands.cells(since, until))

    def bring(self, checkpoint: Spec, names: Sequence[str]) -> Brought:
        """Bring single variables of a checkpoint into the present; all else stays."""
        return self._call(commands.bring(checkpoint, names))

    def bring_files(self, checkpoint: Spec, *paths: str | Path) -> Brought:
        """Bring single files and directories back as they were; all else stays."""
        return self._call(commands.bring_files(checkpoint, [str(path) for path in paths]))

    def changes(self, *checkpoints: Spec) -> tuple[Changes, ...]:
        """What each of these changed since its parent; those without one are left out."""
        return self._call(commands.changes(checkpoints))

    def file(self, path: str, checkpoint: Spec | None = None, root: str | None = None) -> ShownFile:
        """A file as it was at a checkpoint, or as it is: text up to 256 KiB, images up to 4 MiB.

        path: absolute, or below ``root`` (None: the first directory of the workspace).
        """
        return self._call(commands.file(path, checkpoint, root))

    def show(self, checkpoint: Spec, *names: str) -> tuple[ShownVariable, ...]:
        """Variables as a cell that ends with their names would show them."""
        return self._call(commands.show(checkpoint, names))

    def keep_document(
        self, checkpoint: str, cells: Sequence[dict[str, Any]], trusted: bool = False
    ) -> bool:
        """Keep the notebook's cells (nbformat) with a checkpoint; False where it has some already.

        checkpoint: its id. trusted: whether the outputs may run scripts when they are shown.
        """
        return self._call(commands.keep_document(checkpoint, cells, trusted))

    def document(self, checkpoint: Spec) -> tuple[DocumentCell, ...]:
        """The cells and outputs of the notebook as it was. Raises DocumentRefused."""
        return self._call(commands.document(checkpoint))

    def resume(self, force: bool = False, reseed: bool = False) -> RestoreResult:
        """Go on with the newest state from before this kernel that is on the disk."""
        return self._call(commands.resume(force, reseed))

    def verify(self, checkpoint: Spec | None = None) -> tuple[Verified, ...]:
        """Load captures on the disk in a scratch process and compare; None: all of them."""
        return self._call(commands.verify(checkpoint))

    def diff(self, a: Spec, b: Spec | None = None) -> Differences:
        """What happened from ``a`` to ``b`` (None: to the present)."""
        return self._call(commands.diff(a, b))

    def label(self, checkpoint: Spec, label: str | None) -> Record:
        """Set a label, by which the checkpoint can be named; None takes it away."""
        return self._call(commands.label(checkpoint, label))

    def comment(self, checkpoint: Spec, comment: str) -> Record:
        """Say something else of a checkpoint; "" takes the comment away."""
        return self._call(commands.comment(checkpoint, comment))

    def pin(self, checkpoint: Spec, pinned: bool = True) -> Record:
        """Keep a checkpoint from being evicted or deleted, or no longer."""
        return self._call(commands.pin(checkpoint, pinned))

    def delete(self, checkpoint: Spec) -> Record:
        """Delete a checkpoint. Raises DeleteRefused for the head and for a pinned one."""
        return self._call(commands.delete(checkpoint))

    def config(self, **settings: Any) -> dict[str, Any]:
        """Change options of the kernel (none given: change nothing) and return them all."""
        return self._call(commands.config(settings))

    def reset(self, process: bool = False) -> ResetResult:
        """Throw away what was written outside of the workspace; a safety checkpoint holds it.

        After the cell that runs. ``process``: begin a fresh process as well.
        """
        return self._call(commands.reset(process))

    def outside(self, each: bool = False) -> Outside:
        """What was written outside of the workspace and the host does not have, by directory.

        ``each``: name each file too.
        """
        return self._call(commands.outside(each))

    def apply(self, *paths: str | Path, dry_run: bool = False, force: bool = False) -> Applied:
        """Copy files and directories of that to the host, or tell what that would do.

        Paths are absolute; none in an isolated workspace: all of it. ``force``: replace also what
        was changed on the host since.
        """
        return self._call(commands.apply([str(path) for path in paths], dry_run, force))

    def groups(self) -> tuple[GroupState, ...]:
        """Groups of sessions that are captured and restored as one (docs/groups.md).

        This and what follows is asked of a Jupyter server: ``Client.at``.
        """
        return self._call(commands.groups())

    def group(self, name: str) -> GroupState:
        """One group, and where its members are. Raises UnknownGroup."""
        return self._call(commands.group(name))

    def create_group(self, name: str, *members: str) -> GroupState:
        """Make a group of sessions that run on the server.

        members: kernels' ids, or paths of notebooks as the server names them; ``NAME=`` before one
        says how it is called in the group.
        """
        return self._call(commands.create_group(name, members))

    def checkpoint_group(
        self, name: str, comment: str = "", allow_partial: bool = False, wait: float = 20.0
    ) -> GroupRecord:
        """Capture all members of a group at one moment, once all are at rest. Raises GroupFailed.

        wait: seconds until they must be; the client's ``timeout`` is to be longer. allow_partial:
        record those that can be captured.
        """
        return self._call(commands.checkpoint_group(name, comment, allow_partial, wait))

    def restore_group(
        self,
        name: str,
        record: int | str | None = None,
        member: str | None = None,
        undo: bool = False,
        dry_run: bool = False,
        allow_partial: bool = False,
        wait: float = 20.0,
    ) -> GroupRestored:
        """Take all members of a group back to a record of it, or none; or ``member`` alone.

        record: ``G3``, -1 for the newest, a comment. ``undo``, without it: to before the last
        restore. wait: seconds until they must be at rest; the client's ``timeout`` is to be longer.
        Raises GroupRefused, GroupFailed.
        """
        return self._call(
            commands.restore_group(name, record, member, undo, dry_run, allow_partial, wait)
        )

    def events(self, timeout: float | None = None) -> Events:
        """Listen from now on. Iterating ends when ``timeout`` seconds pass without an event."""
        return Events(self, timeout)

    # -- carrying them ----------------------------------------------------------------------

    def ask(self, command: Command[Any]) -> Result:
        """The result of a command as docs/protocol.md has it. Raises as the others do."""
        return self._carrier.ask(command, self.timeout)

    def _call(self, command: Command[T]) -> T:
        return command.read(self.ask(command))


class Events:
    """The events of a kernel from the moment it was made; iterate over it, then close it.

    Iterating ends when ``timeout`` seconds pass without an event, and can be taken up again.
    """

    def __init__(self, client: Client, timeout: float | None) -> None:
        self.timeout = timeout
        self._reader = EventReader(lambda id: client.get(id).history)
        self._stream = client._carrier.listen(client.timeout)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        content = self._stream.next(self.timeout)
        if content is None:
            raise StopIteration
        return self._reader.read_content(content)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; the second call does nothing."""
        self._stream.close()
