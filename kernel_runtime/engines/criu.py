"""Engine ``criu``: the exact process, all threads, on the disk, written and put back by CRIU.

A clone of a frozen process makes itself independent of files and descriptors and waits
(native/parked.c); ``criu dump`` writes it down and ends it. The frozen process and the session are
not touched, and nobody waits. ``criu restore`` puts the clone back in a new sandbox; it is passed
the socket that it shall serve, and is a frozen process, for the engine ``fork`` to wake.

Keeps:  what ``fork`` keeps, also under another kernel. None of the files that were mapped need be
        there again: the store has copies of libraries, once, and the rest is in the image. The
        copies are made when the image is there: until then it needs the libraries as they are.
Loses:  what ``fork`` loses. Of memory nothing is shared between two images.
Needs:  CRIU 4 and root; the same processor features.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines import criu_program
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.criu_libraries import Copies, Hashing, Library, opened
from kernel_runtime.engines.criu_program import CriuFailed, CriuUnusable, Program, Run
from kernel_runtime.engines.fork import Command, ask, listen_at
from kernel_runtime.engines.loaded import MONOTONIC, clock_inside_ns, clock_notes, flag_notes
from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.store.dumps import DumpStore, OpenDump
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.following import Digests, follow
from kernel_runtime.store.image_model import ImageUnusable, Written
from kernel_runtime.store.libraries import OpenFile

# struct tt_parked and struct tt_unpark of native/parked.h
_PARKED: Final = struct.Struct("=iiIIQQ40s")
_UNPARK: Final = struct.Struct("=Ii")
_SIGNAL: Final = signal.SIGUSR1
_PEER: Final = struct.Struct("=iII")

_READY_S: Final = 60.0
_ANSWER_S: Final = 20.0
_RUN_S: Final = 60.0
_SLOWEST: Final = 20e6
"""Bytes a second, below which a run of CRIU is given up."""
_NICE: Final = 10  # as native/copies.h has it
_PAST_IDS: Final = 64
_PAGES: Final = "pages-*.img"


@dataclass(frozen=True)
class _Parked:
    pid: int
    highest_id: int
    name: str
    """The abstract socket that it will look for when it was put back."""


class CriuEngine:
    """Have CRIU write frozen processes, and put them back; see the module's docstring."""

    name = "criu"

    def __init__(
        self,
        store: DumpStore,
        directory: Path,
        program: str = "criu",
        starting: asyncio.Lock | None = None,
    ) -> None:
        """directory: where the frozen processes' sockets lie; private to the user, short.

        starting: as in ImageEngine.
        """
        self._starting = starting or asyncio.Lock()
        self._store = store
        self._directory = directory
        self._name = program
        self._program: Program | None = None
        self._serial = 0
        self._digests = FileDigests(store.libraries.digests)
        self._copies = Copies(store)
        self._copied: dict[str, asyncio.Future[str]] = {}
        self.writers: set[int] = set()
        """Processes, as seen inside, that write an image now; one that is killed stores nothing."""

    async def probe(self) -> Program:
        """The program, once it was seen to be usable. Raises CriuUnusable."""
        if self._program is None:
            criu_program.may_run()
            self._program = await asyncio.to_thread(criu_program.find, self._name)
        return self._program

    async def why_not(self) -> str:
        try:
            await self.probe()
        except CriuUnusable as error:
            return str(error)
        return ""

    # -- writing ------------------------------------------------------------------------------

    async def write(
        self,
        frozen: Frozen,
        sandbox: Sandbox,
        *,
        base: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> Written:
        """Write an image of a frozen process; it can be woken meanwhile.

        base: is of no use to this engine. details: plain JSON for the manifest. Copies of libraries
        that the store lacks are made after that; see `copied`. Raises CheckpointRefused; then
        nothing was stored.
        """
        try:
            program = await self.probe()
            with self._store.scratch() as files:
                # where there is a difference only, it becomes a process when it is asked
                proc = sandbox.proc(frozen.pid) if frozen.pid else None
                async with _hashing(proc, self._digests) as hashing:
                    async with (
                        self._parked(frozen, sandbox) as parked,
                        _hashed_meanwhile(files) as known,
                    ):
                        libraries = hashing.of(sandbox.proc(parked.pid), self._store.libraries)
                        await self._dump(program, sandbox, parked, files, libraries.names)
                    facts = {
                        MONOTONIC: clock_inside_ns(sandbox),
                        **(details or {}),
                        "criu": program.shown_version,
                        "name": parked.name,
                        "pid": parked.pid,
                        "highest_id": parked.highest_id,
                    }
                    written = await asyncio.to_thread(
                        # they are hashed until the rest of the image is on the disk
                        self._store.keep,
                        files,
                        facts,
                        known,
                        hashing.result,
                    )
                    self._copy(written.ref, libraries.missing)
                    return written
        except CriuUnusable as error:
            raise CheckpointRefused(f"CRIU cannot be used: {error}.") from error
        except (OSError, CriuFailed, SandboxError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise CheckpointRefused(
                f"The frozen process {frozen.pid} could not be written: {why}. The session runs "
                "on, and the checkpoint can be restored as long as the kernel runs. The next "
                "checkpoint tries again."
            ) from error
        except StoreError as error:
            raise CheckpointRefused(str(error)) from error

    @contextlib.asynccontextmanager
    async def _parked(self, frozen: Frozen, sandbox: Sandbox) -> Any:
        """A clone that can be dumped. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = 0
        try:
            with ours:
                with theirs:
                    async with self._starting:
                        pid, _, _ = await ask(frozen, Command.PARK, [theirs.fileno()])
                        self.writers.add(pid)
                ours.setblocking(False)
                loop = asyncio.get_running_loop()
                said = await asyncio.wait_for(loop.sock_recv(ours, _PARKED.size), _READY_S)
                # it closes its end after that: then it has none any more
                end = await asyncio.wait_for(loop.sock_recv(ours, _PARKED.size), _READY_S)
            if len(said) != _PARKED.size or end:
                raise ConnectionError(f"its clone {pid} is gone")
            error, _, _, _, highest_id, _, name = _PARKED.unpack(said)
            if error:
                raise OSError(error, f"its clone says: {os.strerror(error)}")
            yield _Parked(pid, highest_id, name.rstrip(b"\0").decode())
        except asyncio.TimeoutError:
            raise TimeoutError(f"its clone {pid} does not answer") from None
        finally:
            if pid:  # CRIU has ended it, unless that failed
                await sandbox.signal(pid, signal.SIGKILL, group=False)
                self.writers.discard(pid)

    async def _dump(
        self, program: Program, sandbox: Sandbox, parked: _Parked, files: Path, names: list[str]
    ) -> None:
        running: set[int] = set()

        def started(pid: int) -> None:
            running.add(pid)
            self.writers.add(pid)

        try:
            await Run(program, sandbox)(
                ["dump", "--tree", str(parked.pid), *(w for n in names for w in ("--external", n))],
                files,
                started=started,
                starting=self._starting,
                timeout=_RUN_S * 10,
                nice=_NICE,
            )
        except asyncio.CancelledError:
            for pid in running:
                await sandbox.signal(pid, signal.SIGKILL, group=False)
            raise
        finally:
            self.writers -= running

    # -- copies of libraries -----------------------------------------------------------------

    def _copy(self, ref: str, files: Sequence[OpenFile]) -> None:
        """Have copies made that an image needs, once it is there."""
        if files:
            self._copied[ref] = self._copies.begin(files)

    @property
    def is_copying(self) -> bool:
        """Whether copies of libraries are being made; a sweep does nothing meanwhile."""
        return not self._copies.are_made

    async def copied(self, ref: str) -> str:
        """Wait until there are copies of the libraries of an image; why there are none, in words.

        Then the image needs the files as they are, until another one of the store's has had them
        copied. To be asked once.
        """
        making = self._copied.pop(ref, None)
        if making is None:
            return ""
        await asyncio.wait([making])  # who does not wait any more must not end it
        return making.result()

    async def all_copied(self) -> None:
        """Wait for all that are being made."""
        await self._copies.made()

    async def close(self, timeout: float) -> None:
        """Likewise, some seconds; those that are not made by then are left to another kernel."""
        await self._copies.close(timeout)

    # -- loading ------------------------------------------------------------------------------

    async def load(self, ref: str, sandbox: Sandbox, *, checkpoint: str) -> Frozen:
        """Put an image back as a frozen process in this sandbox.

        The ids of its process and threads should be free: in a new sandbox, before anything else
        is started. Raises RestoreFailed; then there is no process.
        """
        try:
            program = await self.probe()
            image = await asyncio.to_thread(self._store.open, ref)
        except CriuUnusable as error:
            raise RestoreFailed(str(ImageUnusable(ref, f"CRIU cannot be used: {error}"))) from error
        except StoreError as error:
            raise RestoreFailed(str(error)) from error
        pid: int = image.details["pid"]
        self._serial += 1
        listener, address = listen_at(self._directory / f"c{self._serial}")
        try:
            with listener, _meeting_point(image.details["name"]) as meeting:
                wanted = [Library(*one) for one in image.libraries]
                with opened(ref, wanted, sandbox.root, self._store.libraries) as libraries:
                    await self._restore(program, image, sandbox, libraries)
                    if not self.is_copying:  # an image whose session has not come to it
                        has = self._store.libraries.has
                        lacking = [one for one in wanted if not has(one.file.digest)]
                        self._copy(ref, [(libraries[one.name], one.file) for one in lacking])
                supervisor = 0 if sandbox.ids_kept else os.getpid()
                await sandbox.signal(pid, _SIGNAL, group=False)
                flags = await _pass_socket(meeting, listener, pid, supervisor)
        except ImageUnusable as error:
            os.unlink(address)
            raise RestoreFailed(str(error)) from error
        except (OSError, SandboxError, CriuFailed, asyncio.TimeoutError) as error:
            await sandbox.signal(pid, signal.SIGKILL, group=False)
            os.unlink(address)
            why = str(error) or "the process that it put back does not answer"
            raise RestoreFailed(str(ImageUnusable(image.ref, why))) from error
        except BaseException:
            await sandbox.signal(pid, signal.SIGKILL, group=False)
            os.unlink(address)
            raise
        return Frozen(
            checkpoint,
            pid,
            address,
            not_captured=flag_notes(flags) + clock_notes(image.details, sandbox),
        )

    async def _restore(
        self, program: Program, image: OpenDump, sandbox: Sandbox, libraries: dict[str, int]
    ) -> None:
        await Run(program, sandbox)(
            # a copy of a library is its owner's only: its mode is not what it was
            ["restore", "--restore-detached", "--skip-file-rwx-check"],
            image.files,
            timeout=_RUN_S + image.bytes / _SLOWEST,
            past_id=image.details["highest_id"] + _PAST_IDS if sandbox.ids_kept else 0,
            inherited=libraries,
        )


@contextlib.asynccontextmanager
async def _hashing(proc: str | None, digests: FileDigests) -> AsyncIterator[Hashing]:
    """Hash libraries while CRIU writes, begun with those of the frozen process if there is one."""
    hashing = Hashing(proc, digests)
    try:
        yield hashing
    finally:
        await asyncio.to_thread(hashing.close)


@contextlib.asynccontextmanager
async def _hashed_meanwhile(files: Path) -> AsyncIterator[Digests]:
    """Hash what CRIU writes while it does; what was found is there at the end. Raises OSError."""
    written, known = threading.Event(), Digests()
    following = asyncio.create_task(asyncio.to_thread(follow, files, _PAGES, written))
    try:
        yield known
    finally:
        written.set()
        known.update(await following)


def _meeting_point(name: str) -> socket.socket:
    """A listening socket that only who knows the image could have looked for. Raises OSError."""
    meeting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        meeting.bind(b"\0" + name.encode())
        meeting.listen(8)
        meeting.setblocking(False)
    except BaseException:
        meeting.close()
        raise
    return meeting


async def _pass_socket(
    meeting: socket.socket,
    listener: socket.socket,
    pid: int,
    supervisor_pid: int,
    uid: int | None = None,
) -> int:
    """Give the process that was put back the socket that it serves; return what it could not set.

    Raises OSError, asyncio.TimeoutError.
    """
    loop = asyncio.get_running_loop()
    end = time.monotonic() + _ANSWER_S
    while True:
        connection, _ = await asyncio.wait_for(
            loop.sock_accept(meeting), max(0.0, end - time.monotonic())
        )
        with connection:
            if not _is(connection, pid, os.geteuid() if uid is None else uid):
                continue  # anybody can see the name by now
            socket.send_fds(
                connection, [_UNPARK.pack(_UNPARK.size, supervisor_pid)], [listener.fileno()]
            )
            said = await asyncio.wait_for(loop.sock_recv(connection, _PARKED.size), _ANSWER_S)
            if len(said) != _PARKED.size:
                raise ConnectionError("the process that it put back is gone")
            flags: int = _PARKED.unpack(said)[2]
            return flags


def _is(connection: socket.socket, pid: int, uid: int) -> bool:
    """Whether the other end is the process with that id, as seen inside, of that user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    outside, found, _ = _PEER.unpack(credentials)
    if found != uid:
        return False
    try:
        with open(f"/proc/{outside}/status") as file:
            ids = next(line for line in file if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return False
    return int(ids.split()[-1]) == pid
