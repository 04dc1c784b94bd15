"""Time travel from outside: a client of any kernel that speaks docs/protocol.md.

    with Client(kernel_client) as timetravel:
        before = timetravel.checkpoint("before the join")
        ...
        timetravel.restore(before.number)

It has its own connection to the kernel's control channel (and to IOPub for events), so the
messages of the kernel client that it is made from stay where they are, for whoever waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import ConnectionFileMixin

from jupyter_timetravel import commands
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
    read_message,
    read_reply,
)
from kernel_runtime.timeline.names import Spec

T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 30.0
JOIN_ATTEMPTS: Final = 40
JOIN_WAIT_S: Final = 0.25


class Client:
    """Commands of the time-travel protocol, blocking.

    Each raises the TimeTravelError that the kernel answers with; NoTimeTravel if the kernel has
    none, RequestTimeout if there is no answer within ``timeout`` seconds.
    """

    def __init__(
        self, kernel_client: ConnectionFileMixin, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """``kernel_client``: of any kind, or a kernel manager, with its connection loaded."""
        self.timeout = timeout
        self._connection = BlockingKernelClient()
        self._connection.load_connection_info(kernel_client.get_connection_info())
        self._control = self._connection.connect_control()
        self._knows_kernel = False

    @classmethod
    def from_connection_file(
        cls, path: str | Path, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> Client:
        """A client of the running kernel that wrote this connection file."""
        kernel_client = BlockingKernelClient(connection_file=str(path))
        kernel_client.load_connection_file()
        return cls(kernel_client, timeout=timeout)

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
        # Sockets of event streams go with it.
        self._connection.context.destroy(linger=0)

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
    ) -> RestoreResult:
        """Bring the session back to a checkpoint, or with ``dry_run`` tell what that would change.

        ``undo`` goes back to before the last restore. A running cell is interrupted; with
        ``force`` its process is ended if it does not stop. ``compensate`` first runs what the
        cells in between have registered for that; if one fails, nothing is restored.
        """
        return self._call(commands.restore(checkpoint, only, dry_run, undo, force, compensate))

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

    def resume(self, force: bool = False) -> RestoreResult:
        """Go on with the newest state from before this kernel that is on the disk."""
        return self._call(commands.resume(force))

    def verify(self, checkpoint: Spec | None = None) -> tuple[Verified, ...]:
        """Load captures on the disk in a scratch process and compare; None: all of them."""
        return self._call(commands.verify(checkpoint))

    def diff(self, a: Spec, b: Spec | None = None) -> Differences:
        """What happened from ``a`` to ``b`` (None: to the present)."""
        return self._call(commands.diff(a, b))

    def label(self, checkpoint: Spec, label: str | None) -> Record:
        """Set a label, by which the checkpoint can be named; None takes it away."""
        return self._call(commands.label(checkpoint, label))

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

    def events(self, timeout: float | None = None) -> Events:
        """Listen from now on. Iterating ends when ``timeout`` seconds pass without an event."""
        return Events(self, timeout)

    # -- carrying them ----------------------------------------------------------------------

    def _call(self, command: Command[T]) -> T:
        if not self._knows_kernel:
            check_kernel_info(self._ask("kernel_info_request", {}, "kernel_info")["content"])
            self._knows_kernel = True
        reply = self._ask("timetravel_request", command.content, command.name)
        return command.read(read_reply(reply["content"]))

    def _ask(self, msg_type: str, content: dict[str, Any], name: str) -> Mapping[str, Any]:
        session = self._connection.session
        request = session.send(self._control, msg_type, content)
        deadline = time.monotonic() + self.timeout
        while self._control.poll(_milliseconds(deadline)):
            reply = read_message(session, self._control.recv_multipart())
            # An answer that came after its request had been given up is for nobody.
            if is_answer_to(reply, request):
                return reply
        raise RequestTimeout(name, self.timeout)


class Events:
    """The events of a kernel from the moment it was made; iterate over it, then close it.

    Iterating ends when ``timeout`` seconds pass without an event, and can be taken up again.
    """

    def __init__(self, client: Client, timeout: float | None) -> None:
        self.timeout = timeout
        self._client = client
        self._reader = EventReader(lambda id: client.get(id).history)
        # Each stream sees every message: with one memory of signatures they would be duplicates.
        self._session = client._connection.session.clone()
        self._socket = client._connection.connect_iopub()
        self._early: list[Event] = []
        try:
            self._join()
            client._call(commands.subscribe())
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        """Wait until this socket is known to get messages: what was sent before is lost."""
        session = self._client._connection.session
        for _ in range(JOIN_ATTEMPTS):
            request = session.send(self._client._control, "kernel_info_request", {})
            deadline = time.monotonic() + JOIN_WAIT_S
            while self._socket.poll(_milliseconds(deadline)):
                message = read_message(self._session, self._socket.recv_multipart())
                if event := self._reader.read(message):
                    self._early.append(event)
                if is_answer_to(message, request):
                    return
        raise RequestTimeout("events", JOIN_ATTEMPTS * JOIN_WAIT_S)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._early:
            return self._early.pop(0)
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while self._socket.poll(None if deadline is None else _milliseconds(deadline)):
            message = read_message(self._session, self._socket.recv_multipart())
            if event := self._reader.read(message):
                return event
        raise StopIteration

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; the second call does nothing."""
        self._socket.close(linger=0)


def _milliseconds(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))
