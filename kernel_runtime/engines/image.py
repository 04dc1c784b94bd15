"""Engine ``image``: the exact process, all threads, on the disk.

A copy of a frozen process writes itself down at low priority (native/image.c); the store keeps its
memory by content (store/images.py). After everything was killed, or after a reboot, a small loader
(native/loader.c) puts it back: the result is a frozen process again, for the engine ``fork`` to
wake, copy and drop like any other.

Keeps:  what ``fork`` keeps.
Loses:  what ``fork`` loses, and filters of seccomp, keyrings, the page size of large pages.
Needs:  the same kernel and processor, the files that were mapped, x86-64 or aarch64 with glibc.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernel_runtime import linux
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.fork import Command, ask, listen_at
from kernel_runtime.engines.loaded import MONOTONIC, clock_inside_ns, clock_notes, flag_notes
from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.errors import CheckpointRefused, RestoreFailed, SandboxError
from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_model import ImageUnusable, OpenImage, Written
from kernel_runtime.store.images import ImageStore
from kernel_runtime.timeline.model import Note

LOADER: Final = Path(__file__).resolve().parents[1] / "native" / "timetravel-loader"
CONTROL_FD: Final = 3
"""The loader's end of the socket over which it is told what to load."""

_LOAD: Final = struct.Struct("=IIiI")
_LOADED: Final = struct.Struct("=iiII464s")
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Loaded:
    """What the loader answered: the frozen process's pid, as seen inside, and what it lacks."""

    pid: int
    not_captured: list[Note]


class ImageEngine:
    """Write frozen processes to the store, and load them from there; see the module's docstring."""

    name = "image"

    def __init__(
        self, store: ImageStore, directory: Path, starting: asyncio.Lock | None = None
    ) -> None:
        """directory: where the frozen processes' sockets lie; private to the user, short.

        starting: held from a writer's start until it is among `writers`. Who ends all that is not
        in there holds it too.
        """
        self._starting = starting or asyncio.Lock()
        self._store = store
        self._directory = directory
        self._serial = 0
        self._files = FileDigests(store.file_digests)
        self.writers: set[int] = set()
        """Processes, as seen inside, that write an image now; one that is killed stores nothing."""

    async def why_not(self) -> str:
        return ""

    async def write(
        self,
        frozen: Frozen,
        sandbox: Sandbox,
        *,
        base: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> Written:
        """Write an image of a frozen process; it can be woken meanwhile.

        sandbox: where it is. base: ref of an image of the same session, the
        last one best; what it holds already is not stored again. details: plain JSON for the
        manifest. Raises CheckpointRefused; then nothing was stored.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = 0
        try:
            with theirs:
                async with self._starting:
                    pid, _, _ = await ask(frozen, Command.IMAGE, [theirs.fileno()])
                    self.writers.add(pid)
            files = self._files.at(sandbox.root)
            written = await _in_thread(
                ours,
                self._store.take_in,
                ours,
                files,
                base=base,
                details={MONOTONIC: clock_inside_ns(sandbox), **(details or {})},
            )
            await asyncio.to_thread(self._files.save)
            return written
        except OSError as error:
            raise CheckpointRefused(
                f"The frozen process {frozen.pid} could not be written: "
                f"{error.strerror or error}. The session runs on, and the checkpoint can be "
                "restored as long as the kernel runs. The next checkpoint tries again."
            ) from error
        except StoreError as error:
            raise CheckpointRefused(str(error)) from error
        finally:
            self.writers.discard(pid)
            ours.close()

    async def load(self, ref: str, sandbox: Sandbox, *, checkpoint: str) -> Frozen:
        """Put an image back as a frozen process in this sandbox.

        The files that the image refers to must be there again, and the ids of its process and
        threads should be free: in a new sandbox, before anything else is started. Raises
        RestoreFailed; then there is no process.
        """
        try:
            image = await asyncio.to_thread(self._store.open, ref)
        except StoreError as error:
            raise RestoreFailed(str(error)) from error
        with image:
            try:
                await asyncio.to_thread(self._files.check, image, sandbox.root)
            except StoreError as error:
                raise RestoreFailed(str(error)) from error
            await asyncio.to_thread(keep_out_of_reach, image, self._store.path)
            self._serial += 1
            listener, address = listen_at(self._directory / f"i{self._serial}")
            try:
                with listener:
                    loaded = await self._load(image, sandbox, listener)
            except BaseException:
                os.unlink(address)
                raise
        lost = loaded.not_captured + clock_notes(image.manifest["details"], sandbox)
        return Frozen(checkpoint, loaded.pid, address, not_captured=lost)

    async def _load(self, image: OpenImage, sandbox: Sandbox, listener: socket.socket) -> Loaded:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            try:
                with theirs:
                    await sandbox.spawn([str(LOADER)], {}, "/", {CONTROL_FD: theirs.fileno()})
                await asyncio.to_thread(
                    tell_loader,
                    ours,
                    image,
                    listener.fileno(),
                    0 if sandbox.ids_kept else os.getpid(),
                    keep_ids=sandbox.ids_kept,
                )
                ours.setblocking(False)
                loop = asyncio.get_running_loop()
                answer = await asyncio.wait_for(loop.sock_recv(ours, _LOADED.size), _PATIENCE_S)
            except (OSError, SandboxError, asyncio.TimeoutError) as error:
                why = ImageUnusable(image.ref, f"the loader {LOADER} did not answer ({error})")
                raise RestoreFailed(str(why)) from error
        try:
            return read_answer(image.ref, answer)
        except ImageUnusable as error:
            raise RestoreFailed(str(error)) from error


async def _in_thread(
    stream: socket.socket, function: Callable[..., Written], *args: Any, **kwargs: Any
) -> Written:
    """Run what reads the stream. When this is cancelled the stream ends, and it with that."""
    work = asyncio.create_task(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(work, return_exceptions=True)
        raise


def keep_out_of_reach(image: OpenImage, directory: Path) -> None:
    """See that a cell of root's cannot write to page files through its own mappings of them.

    /proc/PID/map_files leads whoever has CAP_CHECKPOINT_RESTORE on the host to the file, with the
    rights of the mount by which it was opened: so they are opened by one that is read-only. Where
    that cannot be had (Linux before 5.12, no CAP_SYS_ADMIN), nothing is mapped.
    """
    if os.geteuid() != 0 or image.sealed:  # what was sealed is read, and in memory by now
        return
    try:
        mount = linux.open_tree(str(directory), linux.OPEN_TREE_CLONE | linux.OPEN_TREE_CLOEXEC)
        try:
            linux.make_read_only(mount)
            image.open_again(mount)
        finally:
            os.close(mount)
    except OSError:
        image.without_lazy()


def tell_loader(
    control: socket.socket, image: OpenImage, listener: int, supervisor_pid: int, *, keep_ids: bool
) -> None:
    """Give the loader what it loads: plan, listening socket and page files. Raises OSError.

    supervisor_pid: whom the frozen process obeys; see native/timetravel.h. keep_ids: in a pid
    namespace of our own, where the old ids can be had.
    """
    # what was authenticated, not a file that somebody could still change
    plan = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        os.truncate(plan, len(image.plan))
        with open(plan, "wb", closefd=False) as file:
            file.write(image.plan)
        request = _LOAD.pack(_LOAD.size, len(image.page_files), supervisor_pid, int(keep_ids))
        socket.send_fds(control, [request], [plan, listener])
        for fd in image.page_files:
            socket.send_fds(control, [b"p"], [fd])
    finally:
        os.close(plan)


def read_answer(ref: str, answer: bytes) -> Loaded:
    """Understand what the loader said. Raises ImageUnusable."""
    if len(answer) != _LOADED.size:
        raise ImageUnusable(ref, "the loader ended without an answer")
    error, pid, flags, _, text = _LOADED.unpack(answer)
    what = text.rstrip(b"\0").decode("utf-8", "replace")
    if error == errno.ENOEXEC:
        raise ImageUnusable(ref, f"it is of another machine or version; {what}")
    if error:
        raise ImageUnusable(ref, f"{what}: {os.strerror(error)}")
    return Loaded(pid, flag_notes(flags))
