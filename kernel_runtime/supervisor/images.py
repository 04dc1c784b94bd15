"""Images of frozen processes: the exact session on the disk, written after its variables are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kernel_runtime import machine
from kernel_runtime.engines.base import Frozen
from kernel_runtime.engines.image import CLOCK, ImageEngine
from kernel_runtime.errors import CheckpointRefused, RestoreFailed
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.images import ImageStore
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_runtime.supervisor.session import Session

NAME: Final = "image"


class Images:
    """Writes and loads the images of one session."""

    def __init__(self, session: Session, runtime_dir: Path) -> None:
        self._session = session
        self._runtime_dir = runtime_dir
        self._made: ImageEngine | None = None
        self._base: str | None = None

    @property
    def _engine(self) -> ImageEngine:
        if self._made is None:
            directory = self._session.persistence.directory
            assert directory is not None
            self._made = ImageEngine(ImageStore(directory), self._runtime_dir)
        return self._made

    @property
    def writers(self) -> Collection[int]:
        """Pids, inside, of processes that write an image now."""
        return self._made.writers if self._made is not None else ()

    def wanted(self) -> bool:
        """Whether frozen processes can and shall be written."""
        session = self._session
        return (
            session.config.images
            and session.persistence.directory is not None
            and not session.persistence.is_encrypted  # pages are mapped from the file as they are
            and session.engine.name == "fork"
            and session.executor is not None
            and not session.executor.hello["freezer"]
        )

    def clock_ahead_ns(self) -> int:
        """By how much the clock inside must be ahead so that it is behind for no image: the
        monotonic clock starts anew with the machine."""
        images = [found for c in self._session.timeline if (found := image_of(c)) is not None]
        newest = max((int(image.details.get(CLOCK, 0)) for image in images), default=0)
        return max(0, newest - time.monotonic_ns())

    async def write(self, id: str) -> None:
        """Make one capture. What failed is noted on the checkpoint. Never raises."""
        session = self._session
        frozen = session.frozen.get(id)
        if frozen is None or id not in session.timeline:
            return
        started = time.perf_counter()
        session.put_capture(id, Capture("process", NAME, "pending"))
        try:
            clock_ns = time.monotonic_ns() + session.sandbox.clock_ahead_ns
            written = await self._engine.write(
                frozen,
                session.sandbox.root,
                base=self._base,
                details={CLOCK: clock_ns, "machine": dict(machine.here())},
            )
        except asyncio.CancelledError:
            session.put_capture(id, Capture("process", NAME, "failed", error="the kernel ended"))
            raise
        except (CheckpointRefused, StoreError, OSError) as error:
            session.put_capture(id, Capture("process", NAME, "failed", error=str(error)))
            return
        self._base = written.ref
        capture = Capture(
            "process",
            NAME,
            "ready",
            bytes=written.bytes,
            ref=written.ref,
            not_captured=tuple(frozen.not_captured),
            details={
                "stored_bytes": written.stored_bytes,
                "took_ms": (time.perf_counter() - started) * 1e3,
                CLOCK: clock_ns,
            },
        )
        session.put_capture(id, capture)
        await session.published(id)
        await self._thin()

    async def _thin(self) -> None:
        """Give up the images of older automatic checkpoints; their variables stay on the disk."""
        session = self._session
        held = [c for c in session.timeline if image_of(c) is not None and not c.is_kept]
        for checkpoint in held[: -session.config.images_last or None]:
            capture = image_of(checkpoint)
            assert capture is not None
            gone = replace(capture, state="evicted", ref=None, error="newer images took its place")
            session.put_capture(checkpoint.id, gone)
        await self.sweep()

    async def sweep(self) -> None:
        """Delete images that no checkpoint of any timeline names. Never raises."""
        session = self._session
        if session.persistence.directory is None:
            return
        store = ImageStore(session.persistence.directory)
        before_ns = time.time_ns()
        try:
            await session.persistence.written()
            kept = await asyncio.to_thread(session.persistence.images)
            if self._base is not None:
                kept.add(self._base)
            await asyncio.to_thread(lambda: store.sweep(kept, before_ns=before_ns))
        except (StoreError, OSError) as error:
            session.log.warning("Images were not swept: %s", error)

    def misfits(self, checkpoint: Checkpoint) -> list[str]:
        """Why the image of a checkpoint cannot be loaded on this machine. Raises StoreError."""
        capture = image_of(checkpoint)
        directory = self._session.persistence.directory
        if capture is None or capture.ref is None or directory is None:
            return []
        details = ImageStore(directory).manifest(capture.ref)["details"]
        return machine.misfits(details.get("machine", {}))

    async def load(self, checkpoint: Checkpoint) -> Frozen:
        """Put the image of a checkpoint back as a frozen process. Raises RestoreFailed."""
        session = self._session
        capture = image_of(checkpoint)
        if capture is None or capture.ref is None:
            raise RestoreFailed(f"#{checkpoint.number} has no image.")
        frozen = await self._engine.load(
            capture.ref, session.sandbox, session.sandbox.root, checkpoint=checkpoint.id
        )
        self._base = capture.ref
        return frozen


def image_of(checkpoint: Checkpoint) -> Capture | None:
    """The image of a checkpoint's process, if it is on the disk."""
    capture = checkpoint.capture("process", engine=NAME)
    return capture if capture is not None and capture.state == "ready" else None
