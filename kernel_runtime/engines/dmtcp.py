"""Engine ``dmtcp``: executor, threads and child processes, checkpointed by DMTCP.

The executor runs under `dmtcp_launch` from its start, and so does whatever it starts. A checkpoint
is made while the executor is *parked*: its main thread waits for a word on the link. A process that
comes back finds its link dead there, connects to a named socket in a directory that the sandbox and
the supervisor share, and is handed a new one. The newest checkpoint's variables can be read until
the next one, by way of a stand-in (kernel_runtime.engines.stand_in).

Keeps:  memory, threads, child processes and what connects them, open files with their offsets.
Loses:  connections to elsewhere; whatever DMTCP itself cannot hold (docs/dmtcp.md).
Needs:  DMTCP 3 or newer, a store that is not encrypted, a network namespace for the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from kernel_runtime.dmtcp import (
    Coordinator,
    DmtcpError,
    Tools,
    clean_environment,
    copy_restart,
    files_of,
    find,
    launch_command,
    restart_command,
)
from kernel_runtime.dmtcp.errors import CommandTimeout, CoordinatorGone
from kernel_runtime.dmtcp.images import total_bytes
from kernel_runtime.engines.base import Frozen, Woken
from kernel_runtime.engines.stand_in import StandIn
from kernel_runtime.engines.workspace.linux import filesystem_type
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.store.dmtcp_images import DmtcpImageStore, HandedOut
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import Note

WAKE: Final = "wake"
"""Name of the socket on which a process that came back is waited for."""

_CHECKPOINT_S: Final = 600.0
_EMPTY_S: Final = 10.0
_RESTART_S: Final = 300.0
_LOOK_S: Final = 0.5
_READ_S: Final = 30.0
"""Seconds that a checkpoint waits for the variables of the one before it to be read."""
_READ_LOOK_S: Final = 0.02
_CREDENTIALS: Final = struct.Struct("3i")
_OVERLAY: Final = 0x794C7630  # f_type of overlayfs, statfs(2)


class ParkingExecutor(Protocol):
    """The executor, as far as this engine needs it."""

    end_expected: bool

    async def park(self) -> dict[str, Any]:
        """Have it wait between two cells; return its report. Raises CheckpointRefused."""

    def unpark(self, stand_in: int | None = None) -> None:
        """Have it go on. One that is gone is no error.

        stand_in: a socket at which a fork of it is to wait, see executor/stand_in.py.
        """


class DmtcpEngine:
    """Checkpoint and restart by DMTCP; see the module's docstring."""

    name = "dmtcp"
    can_copy = False

    def __init__(self, directory: Path, *, keep_ids: bool) -> None:
        """directory and keep_ids are not used: ids are DMTCP's own, see docs/dmtcp.md."""
        self.starting = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._made: Coordinator | None = None
        self._kept: DmtcpImageStore | None = None
        self._shared = Path()
        self._cwd = "/"
        self._publishing: dict[str, asyncio.Task[None]] = {}
        self._stand_in: StandIn | None = None
        self._reads = True
        self.is_read: Callable[[str], bool] = lambda checkpoint: False
        """Whether somebody reads a checkpoint, or is about to, and it is worth waiting for."""
        self.on_failed: Callable[[str, str], None] = lambda ref, why: None
        """Told of an image that could not be written after all, with the reason."""
        self.on_unread: Callable[[], None] = lambda: None
        """Told that a copy was given up, and that none is made any more."""

    # Life

    async def begin(self, sandbox: Sandbox, store: Path, shared: Path, cwd: str) -> None:
        """Start the coordinator. shared: a directory that the sandbox sees at the same path.

        cwd: in which executors are started. DMTCP brings back a working directory only as it lies
        below the one that a process was started in, seen from that of the restart.

        Raises DmtcpError; then nothing was started.
        """
        tools = await asyncio.to_thread(find)
        await asyncio.to_thread(_clear, shared)
        coordinator = Coordinator(shared, tools=tools)
        await asyncio.to_thread(coordinator.start)
        self._sandbox, self._made, self._shared = sandbox, coordinator, shared
        self._kept = DmtcpImageStore(store)
        self._cwd = cwd

    @property
    def coordinator(self) -> Coordinator:
        """The one that is in use now."""
        assert self._made is not None
        return self._made

    @property
    def store(self) -> DmtcpImageStore:
        """Where images are kept."""
        assert self._kept is not None
        return self._kept

    @property
    def tools(self) -> Tools:
        """The DMTCP that is used."""
        return self.coordinator.tools

    async def launch(self, argv: Sequence[str]) -> list[str]:
        """What to run instead of a program, so that it is under DMTCP. Raises SandboxError."""
        try:
            await self._end_stand_in()
            await self._ready()
        except DmtcpError as error:
            raise SandboxError(str(error)) from error
        program = [*argv, f"--ExecutorApp.wake_directory={self._shared}"]
        return launch_command(self.coordinator, program)

    async def _ready(self) -> None:
        """See that there is a coordinator without programs: it may have died, or been left."""
        if not self.coordinator.is_alive:
            await asyncio.to_thread(self.coordinator.restart)
        try:
            await asyncio.to_thread(self.coordinator.wait_empty, _EMPTY_S)
        except DmtcpError:
            await asyncio.to_thread(self.coordinator.restart)

    async def flush(self) -> None:
        """Wait until all images are on the disk, or are known not to be."""
        while self._publishing:
            await asyncio.wait(list(self._publishing.values()))

    async def close(self) -> None:
        """End the coordinator and what runs under it; images are written to the end."""
        await self.flush()
        if self._stand_in is not None:
            self._stand_in.close()
        if self._made is not None:
            await asyncio.to_thread(self._made.quit)
            await asyncio.to_thread(_clear, self._shared)
            with contextlib.suppress(OSError):
                self._shared.rmdir()

    # engines.base.ProcessEngine

    async def freeze(
        self, executor: Any, checkpoint: str, *, move: bool, hold: int | None = None
    ) -> Frozen:
        """Checkpoint the executor and all of its children. hold is not used: see docs/dmtcp.md."""
        try:
            await self._end_stand_in()  # else it would be in the image
        except DmtcpError as error:
            raise CheckpointRefused(f"The process could not be checkpointed: {error}") from error
        report = await executor.park()
        moved = False
        stand_in: StandIn | None = None
        try:
            if report["endless"]:
                raise CheckpointRefused(
                    "The process could not be checkpointed: DMTCP would wait for ever, or end it, "
                    f"because of {'; '.join(report['endless'])}. Close it and make the checkpoint "
                    "again. Files are captured, and earlier checkpoints are not affected."
                )
            started = time.perf_counter()
            images = await self._checkpoint(executor.pid)
            pause_ms = (time.perf_counter() - started) * 1e3
            notes = [*report["notes"], *await self._elsewhere()]
            size = sum(path.stat().st_size for path in images)
            copied = [path for path in map(files_of, images) if path.is_dir()]
            size += sum(map(total_bytes, (path.iterdir() for path in copied)))
            ref = await asyncio.to_thread(self.store.take_in, [*images, *copied])
            moved = executor.end_expected = move
            if self._reads and not move:
                stand_in = StandIn(checkpoint)
        except CommandTimeout as error:
            # its processes are stopped for ever: they end with it, and the session goes back
            await asyncio.to_thread(self.coordinator.restart)
            raise CheckpointRefused(f"{error}") from error
        except (DmtcpError, StoreError, OSError) as error:
            raise CheckpointRefused(
                f"The process could not be checkpointed by DMTCP: {error} Files are captured, and "
                "earlier checkpoints are not affected."
            ) from error
        finally:
            if stand_in is not None:
                with stand_in.theirs as control:
                    executor.unpark(control.fileno())
            elif not moved:
                executor.unpark()
        self._stand_in = stand_in
        self._publishing[ref] = asyncio.ensure_future(self._publish(ref))
        return Frozen(
            checkpoint,
            0,
            ref,
            threads=report["threads"],
            pause_ms=pause_ms,
            not_captured=[Note(*note) for note in notes],
            details={
                "variables": report["variables"],
                "bytes": size,
                "processes": len(images),
            },
        )

    async def _checkpoint(self, pid: int) -> list[Path]:
        """Have one made; return its images. Raises DmtcpError, CheckpointRefused.

        pid: the executor's. DMTCP ends a process that it cannot write, and waits for it for ever.
        """
        assert self._sandbox is not None
        coordinator = self.coordinator
        making = asyncio.ensure_future(asyncio.to_thread(coordinator.checkpoint, _CHECKPOINT_S))
        ended = asyncio.ensure_future(self._sandbox.wait_exit(pid))
        try:
            await asyncio.wait([making, ended], return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                await asyncio.wait([making], timeout=_EMPTY_S)
            if not making.done():
                await asyncio.to_thread(coordinator.restart)
                await asyncio.wait([making])  # its command finds no coordinator any more
            if making.exception() and not os.path.exists(self._sandbox.proc(pid)):
                raise CheckpointRefused(
                    "The process has ended while DMTCP wrote it: it holds something that this "
                    "DMTCP cannot write. Files are captured, and earlier checkpoints are not "
                    "affected."
                )
            return making.result()
        finally:
            ended.cancel()

    async def _elsewhere(self) -> list[tuple[str, str, str]]:
        """The children that would come back in another working directory."""
        assert self._sandbox is not None
        proc = self._sandbox.proc
        notes = []
        for client in (await asyncio.to_thread(self.coordinator.clients))[1:]:
            with contextlib.suppress(OSError):
                cwd = os.readlink(f"{proc(client.real_pid)}/cwd")
                if cwd != self._cwd:
                    told = f"works in {cwd}; restarted, it may find itself in {self._cwd}"
                    notes.append(("child process", f"{client.pid} ({client.program})", told))
        return notes

    async def _publish(self, ref: str) -> None:
        needs = {
            "dmtcp": self.tools.version_text,
            "machine": platform.machine(),
            "cwd": self._cwd,
        }
        try:
            await asyncio.to_thread(self.store.publish, ref, needs)
        except StoreError as error:
            await asyncio.to_thread(self.store.discard, ref)
            self.on_failed(ref, str(error))
        finally:
            del self._publishing[ref]

    async def wake(self, frozen: Frozen, fds: Sequence[int]) -> Woken:
        """Restart from the image that frozen.address names; nothing else may live inside."""
        started = time.perf_counter()
        ref = frozen.address
        with contextlib.suppress(DmtcpError):  # then _ready ends it with the coordinator
            await self._end_stand_in()
        if ref in self._publishing:
            await asyncio.wait([self._publishing[ref]])
        handed: HandedOut | None = None
        try:
            handed = await asyncio.to_thread(
                self.store.hand_out, ref, self._shared / "restart" / ref, self.coordinator.images
            )
            _check(handed, self.tools)
            await self._ready()
            pid = await self._restart(handed, fds)
        except (DmtcpError, StoreError, SandboxError, OSError) as error:
            raise RestoreFailed(f"DMTCP could not restart the process: {error}") from error
        finally:
            if handed is not None:
                await asyncio.to_thread(self.store.take_back, handed)
        return Woken(pid, (time.perf_counter() - started) * 1e3, consumed=False)

    async def _restart(self, handed: HandedOut, fds: Sequence[int]) -> int:
        """Start the processes and hand the link over; return the executor's pid as seen inside."""
        assert self._sandbox is not None
        restart = await asyncio.to_thread(self._restarter)
        argv = restart_command(self.coordinator, handed.files, restart)
        with _listening(self._shared) as listener, open(os.devnull) as null:
            # children keep the streams that they had, and these are the command's after a restart
            streams = {0: null.fileno(), 1: fds[1], 2: fds[2]}
            cwd = str(handed.details["cwd"])
            starter = await self._sandbox.spawn(argv, clean_environment(), cwd, streams)
            connection = await self._accepted(listener, starter)
            with connection:
                credentials = connection.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
                pid = pid_inside(_CREDENTIALS.unpack(credentials)[0])
                socket.send_fds(connection, [b"wake"], list(fds))
        return pid

    def _restarter(self) -> Path | None:
        """A copy of dmtcp_restart, where the sandbox's overlay would lie on another one."""
        with open(self.tools.restart, "rb") as file:
            if filesystem_type(file.fileno()) != _OVERLAY:
                return None
        return copy_restart(self.tools, self._shared / "programs")

    async def _accepted(self, listener: socket.socket, starter: int) -> socket.socket:
        """The connection of the process that came back. Raises RestoreFailed if none comes."""
        assert self._sandbox is not None
        loop = asyncio.get_running_loop()
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        ended = asyncio.ensure_future(self._sandbox.wait_exit(starter))
        end = loop.time() + _RESTART_S
        try:
            misses = 0
            while loop.time() < end and misses < 4:
                await asyncio.wait([accepting], timeout=_LOOK_S)
                if accepting.done():
                    return accepting.result()[0]
                if ended.done() and (code := os.waitstatus_to_exitcode(ended.result())):
                    raise RestoreFailed(f"dmtcp_restart ended with exit status {code}.")
                # it may leave the processes to themselves; then the coordinator knows of them
                status = await asyncio.to_thread(self.coordinator.status)
                misses = 0 if status.peers or not ended.done() else misses + 1
        finally:
            for future in (accepting, ended):
                future.cancel()
        raise RestoreFailed("the processes did not come up")

    def can_read(self, frozen: Frozen) -> bool:
        """Only the newest checkpoint, and not after a restore."""
        return self._stand_in is not None and self._stand_in.checkpoint == frozen.checkpoint

    async def copy(self, frozen: Frozen, fds: Sequence[int]) -> int:
        """Have the stand-in of the newest checkpoint copied."""
        if self._stand_in is None or not self.can_read(frozen):
            raise CheckpointRefused(
                "Under DMTCP the variables of the newest checkpoint alone can be read, until the "
                "next one is made: there are no frozen processes."
            )
        return await self._stand_in.copy(fds)

    async def _end_stand_in(self) -> None:
        """End it and its copies; return when none is under the coordinator any more.

        A copy that is_read is waited for, but not for ever: it may wait for a lock that nobody
        holds in it. Raises DmtcpError.
        """
        stand_in = self._stand_in
        if stand_in is None:
            return
        assert self._sandbox is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + _READ_S
        while self.is_read(stand_in.checkpoint) and loop.time() < end:
            await asyncio.sleep(_READ_LOOK_S)
        if self.is_read(stand_in.checkpoint):
            self._reads = False
            self.on_unread()
        self._stand_in = None
        pids = await stand_in.end(self._sandbox)
        end = loop.time() + _EMPTY_S
        with contextlib.suppress(CoordinatorGone):
            while any(
                one.real_pid in pids for one in await asyncio.to_thread(self.coordinator.clients)
            ):
                if loop.time() > end:
                    raise CommandTimeout("the end of a copy of the session", _EMPTY_S)
                await asyncio.sleep(_READ_LOOK_S)

    async def drop(self, frozen: Frozen) -> None:
        """Forget it; its image goes when no checkpoint names it any more."""
        if not frozen.checkpoint:
            await asyncio.to_thread(self.store.discard, frozen.address)

    async def prepare_twin(self, frozen: Frozen, live: int) -> None:
        """Nothing to prepare."""

    async def unshare(self, frozen: Frozen, budget: int) -> int:
        """Nothing is shared."""
        return 0

    async def ping(self, frozen: Frozen) -> None:
        """Nothing is under way."""

    def ended(self, pid: int) -> None:
        """Nothing depends on a process."""


@contextlib.contextmanager
def _listening(directory: Path) -> Iterator[socket.socket]:
    """A socket for a process that comes back; its path may be longer than an address holds."""
    path = directory / WAKE
    path.unlink(missing_ok=True)
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"/proc/self/fd/{at}/{WAKE}")
            listener.listen(1)
            listener.setblocking(False)
            yield listener
    finally:
        os.close(at)
        path.unlink(missing_ok=True)


def pid_inside(pid: int) -> int:
    """A process's id in its own pid namespace. Raises OSError if it is gone."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def _check(handed: HandedOut, tools: Tools) -> None:
    """Raise RestoreFailed for an image that this machine's DMTCP cannot read, by all it says."""
    needs = handed.details
    if needs.get("machine") != platform.machine():
        raise RestoreFailed(f"its image is of a {needs.get('machine')} machine.")
    written, here = str(needs.get("dmtcp", "")), tools.version_text
    if written.partition(".")[0] != here.partition(".")[0]:
        raise RestoreFailed(
            f"its image was written by DMTCP {written}, and DMTCP {here} is installed: images are "
            "not compatible between major versions."
        )


def _clear(shared: Path) -> None:
    """Remove what an earlier kernel has left; images in the store are not here."""
    for name in ("images", "restart", "programs", "tmp"):
        shutil.rmtree(shared / name, ignore_errors=True)
    for name in (WAKE, "port", "coordinator.log"):
        with contextlib.suppress(OSError):
            (shared / name).unlink(missing_ok=True)
