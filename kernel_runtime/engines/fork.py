"""Engine ``fork``: a checkpoint is a copy-on-write copy of the executor with all of its threads.

This is the supervisor's half: it binds the socket on which the frozen process will wait, and speaks
to frozen processes. The other half is C (kernel_runtime/native, docs/native.md), called in the
executor by kernel_runtime.executor.freezer.

Keeps:  memory, threads, open files with their offsets, timers, descriptors within the process.
Loses:  child processes, connections, what the capture lists as not captured.
Needs:  Linux on x86-64 or aarch64 with glibc; elsewhere only processes of a single thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from pathlib import Path

from traitlets.log import get_logger

from kernel_runtime.engines.base import Frozen, LiveExecutor, Woken
from kernel_runtime.engines.difference import Differences
from kernel_runtime.errors import CheckpointRefused, RestoreFailed

# struct tt_request and struct tt_answer of native/timetravel.h
_REQUEST = struct.Struct("=IIIiQ")
_ANSWER = struct.Struct("=iiQQ")


class Command(IntEnum):
    """What a frozen process can be asked; TT_* of native/timetravel.h."""

    PING = 1
    WAKE = 2
    TWIN = 3
    UNSHARE = 4
    QUIT = 5
    IMAGE = 6
    PARK = 7
    DIFFERENCE = 8


class WakeFlag(IntFlag):
    """Flags of ``WAKE``."""

    NEW_IDS = 1
    CONSUME = 2
    KEEP_IDS_OR_FAIL = 4
    COPY = 8


class ForkEngine:
    """Freeze by a raw clone, wake by another; see the module's docstring."""

    name = "fork"
    can_copy = True

    def __init__(self, directory: Path, *, keep_ids: bool) -> None:
        """directory: where the frozen processes' sockets lie; private to the user, short."""
        self._directory = directory
        self._keep_ids = keep_ids
        self._serial = 0
        self._spare: tuple[socket.socket, str] | None = None
        self.differences = Differences()
        self.starting = self.differences.starting

    async def freeze(
        self,
        executor: LiveExecutor,
        checkpoint: str,
        *,
        move: bool,
        hold: int | None = None,
    ) -> Frozen:
        listener, address = self._take_listener()
        try:
            place, base = (None, 0) if move else self.differences.place(executor)
            # while the executor is at it: making a file on a disk takes a part of a millisecond
            asyncio.get_running_loop().call_soon(self._prepare_listener)
            frozen = await executor.freeze(
                listener.fileno(),
                address,
                move=move,
                hold=hold,
                difference=place,
                base=base,
            )
            # only the frozen process holds it now: if there is none, a connection is refused
            listener.close()
            if place is not None and (size := frozen.details.get("difference_bytes", 0)):
                if not self.differences.add(frozen, place, size):
                    raise CheckpointRefused("The frozen process that it is based on has ended.")
            elif not frozen.pid:  # a moved process cannot tell its new id before it is gone
                frozen.pid, _, _ = await ask(frozen, Command.PING)
            if move:
                self.differences.moved()
            elif not frozen.difference:
                self.differences.cloned(executor, frozen, place is not None)
        except OSError as error:
            os.unlink(address)
            raise CheckpointRefused(f"The frozen process does not answer: {error}.") from error
        except BaseException:
            os.unlink(address)
            raise
        finally:
            listener.close()
        frozen.checkpoint = checkpoint
        return frozen

    def ended(self, pid: int) -> None:
        """A process inside has ended unasked."""
        self.differences.ended(pid)

    def _take_listener(self) -> tuple[socket.socket, str]:
        found, self._spare = self._spare or self._listen(), None
        return found

    def _prepare_listener(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):  # whoever needs one will be told
                self._spare = self._listen()

    def _listen(self) -> tuple[socket.socket, str]:
        self._serial += 1
        return listen_at(self._directory / f"f{self._serial}")

    async def wake(self, frozen: Frozen, fds: Sequence[int]) -> Woken:
        flags = 0 if self._keep_ids else WakeFlag.NEW_IDS
        twin, frozen.twin = frozen.twin, None
        if twin is not None:
            try:
                pid, ns, _ = await ask(twin, Command.WAKE, fds, flags | WakeFlag.CONSUME)
                with contextlib.suppress(OSError):
                    os.unlink(twin.address)
                return Woken(pid, ns / 1e6, consumed=True)
            except OSError as error:
                get_logger().warning("A twin could not be woken, a new copy is made: %s", error)
                await self.drop(twin)
        try:
            pid, ns, _ = await ask(frozen, Command.WAKE, fds, flags)
        except OSError as error:
            raise RestoreFailed(
                f"The frozen process {frozen.pid} could not be woken: {error.strerror or error}."
            ) from error
        return Woken(pid, ns / 1e6, consumed=False)

    def can_read(self, frozen: Frozen) -> bool:
        return True

    async def copy(self, frozen: Frozen, fds: Sequence[int]) -> int:
        try:
            pid, _, _ = await ask(frozen, Command.WAKE, fds, WakeFlag.COPY)
        except OSError as error:
            raise CheckpointRefused(
                f"The frozen process {frozen.pid} could not be copied: {error.strerror or error}. "
                "The session runs on, and the checkpoint can be restored as long as the kernel "
                "runs. The next checkpoint tries again."
            ) from error
        return pid

    async def prepare_twin(self, frozen: Frozen, live: int) -> None:
        """Clone a frozen process ahead of time, so that waking it costs the same at any size.

        live: whose latest writes the clone makes ready to write. Raises OSError; then the frozen
        process is as it was.
        """
        listener, address = self._listen()
        try:
            await settle(frozen)  # which takes the lock, too
            async with self.starting:
                pid, _, _ = await ask(frozen, Command.TWIN, [listener.fileno()], arg=live)
        except BaseException:
            os.unlink(address)
            raise
        finally:
            listener.close()
        frozen.twin = Frozen(frozen.checkpoint, pid, address)

    async def unshare(self, frozen: Frozen, budget: int) -> int:
        """Have it copy the pages that the live process is likely to write next; return bytes.

        Then the live process writes them at full speed and keeps its huge pages: the price of
        copy-on-write is paid by the frozen process. Stops early when another request comes.
        """
        _, _, done = await ask(frozen, Command.UNSHARE, arg64=budget, timeout=120)
        return done

    async def ping(self, frozen: Frozen) -> None:
        """Have it answer, which ends an un-sharing that is under way. A dead one is no error."""
        with contextlib.suppress(OSError):
            await ask(frozen, Command.PING)

    async def drop(self, frozen: Frozen) -> None:
        if frozen.twin is not None:
            await self.drop(frozen.twin)
            frozen.twin = None
        await self.differences.before_it_goes(frozen, settle)
        if frozen.difference is not None:
            await frozen.difference.close_aside()
        else:
            with contextlib.suppress(OSError):
                await ask(frozen, Command.QUIT)
        with contextlib.suppress(OSError):
            os.unlink(frozen.address)


def listen_at(path: Path) -> tuple[socket.socket, str]:
    """A socket for a frozen process to wait on, and its address. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(path))
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    return listener, str(path)


async def settle(frozen: Frozen) -> None:
    """Have the process made, if there is only a difference so far.

    Raises OSError; then it can be tried again, if the base is still there.
    """
    difference = frozen.difference
    if difference is None:
        return
    async with difference.starting:
        if frozen.difference is None:
            return
        if difference.closed:
            raise ConnectionError(errno.ECONNRESET, "it was given up")
        with contextlib.suppress(OSError):
            os.unlink(frozen.address)
        listener, _ = listen_at(Path(frozen.address))
        with listener:
            file, at = difference.place
            fds = [listener.fileno(), file]
            frozen.pid, _, _ = await ask(difference.base, Command.DIFFERENCE, fds, arg64=at)
        difference.close()
        frozen.difference = None


async def ask(
    frozen: Frozen,
    command: Command,
    fds: Sequence[int] = (),
    flags: int = 0,
    arg: int = 0,
    arg64: int = 0,
    timeout: float = 30.0,
) -> tuple[int, int, int]:
    """Send one request to a frozen process; return (pid, nanoseconds, bytes) of its answer.

    timeout in seconds. Raises OSError with the errno that it answered, ConnectionError if it is
    gone, TimeoutError if it does not answer.
    """
    await settle(frozen)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, frozen.address)
        request = _REQUEST.pack(_REQUEST.size, command, flags, arg, arg64)
        if fds:
            socket.send_fds(connection, [request], list(fds))
        else:
            connection.send(request)
        answering = asyncio.ensure_future(loop.sock_recv(connection, _ANSWER.size))
        try:
            # not wait_for: before Python 3.12 it may forget that it was cancelled
            await asyncio.wait([answering], timeout=timeout)
            if not answering.done():
                raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
            data = answering.result()
        finally:
            answering.cancel()
    if len(data) != _ANSWER.size:
        raise ConnectionError(errno.ECONNRESET, "it is gone")
    error, pid, ns, amount = _ANSWER.unpack(data)
    if error:
        raise OSError(error, os.strerror(error))
    return pid, ns, amount
