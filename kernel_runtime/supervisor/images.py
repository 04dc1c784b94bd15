"""Images of frozen processes: the exact session on the disk, written after its variables are."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from kernel_runtime import machine
from kernel_runtime.engines.base import DurableEngine, Frozen
from kernel_runtime.engines.loaded import MONOTONIC, clock_inside_ns
from kernel_runtime.errors import CheckpointRefused, RestoreFailed
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.images import ImageStore
from kernel_runtime.supervisor.tree_captures import has_tree, holds_children
from kernel_runtime.timeline.model import Capture, Checkpoint
from kernel_runtime.timeline.text import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_runtime.engines.criu import CriuEngine
    from kernel_runtime.supervisor.session import Session

ENGINES: Final = ("image", "criu")
"""Names in captures, in the order in which a restore takes them."""

_OF_BUDGET: Final = 4
"""The images of automatic checkpoints may take one part in so many of what all may take."""
_IMAGES_LEAST: Final = 2
"""Of these the images stay whatever they take."""
_ROOM_LEFT: Final = 256 << 20
"""Bytes that the store's disk must have free."""

_NOT_COPIED: Final = (
    "The store has no copies of the libraries that a process which CRIU has written needs: {}. "
    "Until a later checkpoint has had them copied, it needs these files as they are."
)

_WRITTEN_BY: Final = {"image": ("image",), "criu": ("criu",), "both": ENGINES}


class Images:
    """Writes and loads the images of one session."""

    def __init__(self, session: Session, runtime_dir: Path) -> None:
        self._session = session
        self._runtime_dir = runtime_dir
        self._made: dict[str, DurableEngine] = {}
        self._base: str | None = None
        self._told: set[str] = set()

    def _engine(self, name: str) -> DurableEngine:
        if name not in self._made:
            # each when it is needed: a kernel that starts waits for neither
            from kernel_runtime.engines.criu import CriuEngine
            from kernel_runtime.engines.image import ImageEngine

            directory = self._session.persistence.directory
            assert directory is not None
            starting = self._session.durability.starting
            self._made[name] = (
                CriuEngine(
                    DumpStore(directory), self._runtime_dir, self._session.config.criu, starting
                )
                if name == "criu"
                else ImageEngine(ImageStore(directory), self._runtime_dir, starting)
            )
        return self._made[name]

    @property
    def criu(self) -> CriuEngine:
        """The engine of that name; where there is a store."""
        engine = self._engine("criu")
        return cast("CriuEngine", engine)

    @property
    def writers(self) -> Collection[int]:
        """Pids, inside, of processes that write an image now."""
        return [pid for engine in self._made.values() for pid in engine.writers]

    def wanted(self) -> bool:
        """Whether frozen processes can and shall be written."""
        session = self._session
        return (
            session.config.images
            and session.persistence.directory is not None
            and session.engine.name == "fork"
            # in the middle of a restore there is none: what is frozen is written all the same
            and not (session.executor is not None and session.executor.hello["freezer"])
        )

    async def write(self, id: str) -> None:
        """Make the captures of one checkpoint. What failed is noted on it. Never raises.

        Where CRIU has dumped the live processes, ours is the other one: each engine has one.
        """
        session = self._session
        names = await self._usable()
        if id in session.timeline and has_tree(session.timeline[id]):
            names = tuple(dict.fromkeys("image" if name == "criu" else name for name in names))
        written = [name for name in names if await self._write(id, name)]
        if not written and "image" not in names:
            await self._write(id, "image")
        await self.thin()

    @property
    def _is_copying(self) -> bool:
        return "criu" in self._made and self.criu.is_copying

    async def _usable(self) -> tuple[str, ...]:
        """The engines that are to write; ours where the other one cannot, which is said once."""
        session = self._session
        names = _WRITTEN_BY[session.config.images_by]
        why = await self._why_no_criu() if "criu" in names else ""
        if not why:
            return names
        if why not in self._told:
            self._told.add(why)
            session.router.say_next(
                f"Supervisor.images_by is {session.config.images_by}, but CRIU cannot be used: "
                f"{why}. Processes are written by time travel itself."
            )
        return ("image",)

    async def _why_no_criu(self) -> str:
        if self._session.persistence.is_encrypted:
            return "the store is encrypted, and CRIU writes images as they are"
        return await self._engine("criu").why_not()

    def no_room(self) -> str:
        """Why no image is begun, in words: what is left of the disk is for cells, which write to it
        as well, and for the variables."""
        directory = self._session.persistence.directory
        assert directory is not None
        try:
            free = shutil.disk_usage(directory).free
        except OSError:
            return ""  # writing says what is wrong
        if free >= _ROOM_LEFT:
            return ""
        return f"no space for images of processes: {size_text(free)} are left on the store's disk"

    async def _write(self, id: str, name: str) -> bool:
        """Make one capture; say whether it is on the disk."""
        session = self._session
        frozen = session.frozen.get(id)
        if id not in session.timeline:
            return False
        if frozen is None:
            if session.timeline[id].is_kept:
                why = "its frozen process was gone before it could be written"
                session.captures.put(id, Capture("process", name, "failed", error=why))
            return False
        started = time.perf_counter()
        session.captures.put(id, Capture("process", name, "pending"))
        engine, base = self._engine(name), self._base if name == "image" else None
        if no_room := self.no_room():
            session.captures.put(id, Capture("process", name, "failed", error=no_room))
            return False
        try:
            details = {MONOTONIC: clock_inside_ns(session.sandbox), "machine": dict(machine.here())}
            written = await engine.write(frozen, session.sandbox, base=base, details=details)
        except asyncio.CancelledError:
            session.captures.put(id, Capture("process", name, "failed", error="the kernel ended"))
            raise
        except (CheckpointRefused, StoreError, OSError) as error:
            session.captures.put(id, Capture("process", name, "failed", error=str(error)))
            return False
        if name == "image":
            self._base = written.ref
        capture = Capture(
            "process",
            name,
            "ready",
            bytes=written.bytes,
            ref=written.ref,
            not_captured=tuple(frozen.not_captured),
            details={
                "stored_bytes": written.stored_bytes,
                "took_ms": (time.perf_counter() - started) * 1e3,
                MONOTONIC: details[MONOTONIC],
            },
        )
        await session.captures.put_durable(id, capture)
        if name == "criu":
            session.background(self._copied(written.ref))
        return True

    async def _copied(self, ref: str) -> None:
        """See that an image of CRIU's has copies of its libraries; say, once, why it has not."""
        if why := (await self.criu.copied(ref)).rstrip("."):
            told = _NOT_COPIED.format(why)
            self._session.log.warning(told)
            if told not in self._told:
                self._told.add(told)
                self._session.router.say_next(told)

    async def thin(self) -> None:
        """Give up the images of older automatic checkpoints; their variables stay on the disk."""
        session = self._session
        held = [c for c in session.timeline if _written_of(c) and not c.is_kept]
        held = [c for c in held if c.id not in session.durability.secured]
        for checkpoint in held[: -self._may_stay(held)]:
            for capture in _written_of(checkpoint):
                why = "newer images took its place"
                gone = replace(capture, state="evicted", ref=None, error=why)
                session.captures.put(checkpoint.id, gone)
        if self._is_copying:  # nothing can be deleted meanwhile, and the next image need not wait
            session.background(self.sweep())
        else:
            await self.sweep()

    def _may_stay(self, held: Sequence[Checkpoint]) -> int:
        """How many of these, the newest, keep their images: of large ones fewer, before whole
        checkpoints have to go for what all take."""
        most, limit = self._session.config.images_last, self._session.deletion.budget.limit
        room = limit // _OF_BUDGET
        for count, checkpoint in enumerate(reversed(held[-most:])):
            room -= sum(one.details.get("stored_bytes", 0) for one in _written_of(checkpoint))
            if count >= _IMAGES_LEAST and room < 0 < limit:
                return count
        return most

    async def sweep(self) -> None:
        """Delete images that no checkpoint of any timeline names. Never raises."""
        session = self._session
        if session.persistence.directory is None:
            return
        sweeps: dict[str, Callable[..., object]] = {
            "image": ImageStore(session.persistence.directory).sweep,
            "criu": DumpStore(session.persistence.directory).sweep,
        }
        if self._is_copying:
            await self.criu.all_copied()
        before_ns = time.time_ns()
        try:
            await session.persistence.written()
            for name, sweep in sweeps.items():
                kept = await asyncio.to_thread(session.persistence.images, name)
                if self._base is not None:
                    kept.add(self._base)
                await asyncio.to_thread(sweep, kept, before_ns=before_ns)
        except (StoreError, OSError) as error:
            session.log.warning("Images were not swept: %s", error)

    def misfits(self, checkpoint: Checkpoint) -> list[str]:
        """Why no image of a checkpoint can be loaded on this machine. Raises StoreError."""
        directory = self._session.persistence.directory
        images = images_of(checkpoint)
        # what CRIU wrote outlives a kernel update; CRIU itself says what does not fit
        if directory is None or any(image.engine != "image" for image in images):
            return []
        why: list[str] = []
        for image in images:
            if image.ref is not None:
                details = ImageStore(directory).manifest(image.ref)["details"]
                why += machine.misfits(details.get("machine", {}))
        return why

    async def load(self, checkpoint: Checkpoint, capture: Capture) -> Frozen:
        """Put an image of a checkpoint back as a frozen process. Raises RestoreFailed."""
        session = self._session
        if capture.ref is None:
            raise RestoreFailed(f"#{checkpoint.number} has no image.")
        frozen = await self._engine(capture.engine).load(
            capture.ref, session.sandbox, checkpoint=checkpoint.id
        )
        if capture.engine == "image":
            self._base = capture.ref
        else:
            session.background(self._copied(capture.ref))
        return frozen

    async def stop(self) -> None:
        """Have the copies of libraries made that images need, if that does not take long."""
        if "criu" in self._made:
            await self.criu.close(self._session.config.durability_at_end)
            if self._is_copying:
                self._session.log.warning(_NOT_COPIED.format("the kernel ended before"))


def images_of(checkpoint: Checkpoint) -> list[Capture]:
    """The images of a checkpoint's process that are on the disk, the first to be taken first."""
    return [capture for capture in _written_of(checkpoint) if not holds_children(capture)]


def _written_of(checkpoint: Checkpoint) -> list[Capture]:
    """Likewise, those with child processes too."""
    found = [checkpoint.capture("process", engine=name) for name in ENGINES]
    return [capture for capture in found if capture is not None and capture.state == "ready"]
