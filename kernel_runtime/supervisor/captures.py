"""What is held of each checkpoint: its captures, what is written of them, what they need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernel_runtime.supervisor.container_layer import CommitRefused, capture_of, image_of
from kernel_runtime.supervisor.environment import layers_of
from kernel_runtime.timeline.model import Capture

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_PUBLISH_S = 20.0

_CELLS_FIRST_S = 0.1
"""Seconds at most that the writing of a checkpoint is put off while cells run."""

_LOOK_S = 0.02

_COMMITS_LAST = 20
"""Commits of a container's layer that are kept for automatic checkpoints."""


class Captures:
    """The captures of one session's checkpoints, in memory and in the store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.publishing: set[asyncio.Task[Any]] = set()
        """What writes new checkpoints into the store just now."""
        self._tidying = asyncio.Lock()
        self._awaited = 0

    # Frozen processes

    async def evict(self, id: str, why: str) -> None:
        """Give up a checkpoint's frozen process; its files stay."""
        session = self._session
        frozen = session.frozen.pop(id, None)
        if frozen is None:
            return
        self.set_process_state(id, "evicted", why)
        await session.engine.drop(frozen)

    def frozen_pids(self) -> list[int]:
        """All processes inside that are not live: frozen ones, their twins, copies of them."""
        session = self._session
        pids = [f.pid for f in session.frozen.values() if f.pid]
        pids += [f.twin.pid for f in session.frozen.values() if f.twin is not None]
        return [*pids, *session.durability.copies, *session.images.writers]

    def set_process_state(self, id: str, state: Any, why: str | None) -> None:
        """Note what became of a process capture, and tell everybody."""
        session = self._session
        if id not in session.timeline:
            return
        capture = session.timeline[id].capture("process", engine=session.engine.name)
        if capture is None:
            return
        self.put(id, replace(capture, state=state, error=why, ref=None))

    # All captures

    def put(self, id: str, capture: Capture) -> None:
        """Put a capture on its checkpoint, if that is still there; write it, tell everybody."""
        session = self._session
        if id in session.timeline:
            session.timeline.set_capture(id, capture)
            self.save_changed(id)

    async def put_durable(self, id: str, capture: Capture) -> None:
        """Likewise with what outlives the kernel: shown when its row is on the disk, not before.

        Else a kernel that is killed right after it was shown would turn out not to have it.
        """
        session = self._session
        await self.published(id)
        if id in session.timeline:
            session.persistence.save(session.timeline, session.timeline[id].with_capture(capture))
            await session.persistence.written()
            self.put(id, capture)

    def save_changed(self, id: str) -> None:
        """Write what has changed on a checkpoint, and tell everybody."""
        session = self._session
        # what is not in the store yet goes there as it is then
        if id not in session.persistence.unpublished:
            session.persistence.save(session.timeline, session.timeline[id])
        session.events.publish("checkpoint_changed", checkpoint=session.timeline[id])

    def publish(self, id: str) -> None:
        """Write a new checkpoint into the store, in the background; shutdown waits for it."""
        session = self._session
        session.persistence.unpublished.append(id)
        task = session.background(self._publish(id))
        self.publishing.add(task)
        task.add_done_callback(self.publishing.discard)

    async def _publish(self, id: str) -> None:
        session = self._session
        await self._cells_first(id)
        if id in session.persistence.unpublished:  # else it was written together with another
            await self._write_waiting()
        if id in session.timeline:
            await session.environment_changes.index(
                session.timeline[id].capture("filesystem", engine="overlay")
            )
        if id in session.timeline:
            await session.package_steps.learn(session.timeline[id])
        await session.under_dmtcp.thin()

    async def _write_waiting(self) -> None:
        """Write all checkpoints that are not in the store yet."""
        session = self._session
        # what a checkpoint names must be on the disk before the database names it
        ready = list(session.persistence.unpublished)
        await asyncio.gather(
            session.files.flush(), session.environment.flush(), session.under_dmtcp.flush()
        )
        # parents before children, and nothing is waited for in between: at whatever moment the
        # supervisor is killed, the store holds no checkpoint whose parent it does not hold
        for one in ready:
            if one in session.persistence.unpublished:
                session.persistence.unpublished.remove(one)
                if one in session.timeline:
                    session.persistence.save(session.timeline, session.timeline[one])

    async def _cells_first(self, id: str) -> None:
        """Where cells come one after the other, they have the machine: what they leave behind is
        written a moment later, together."""
        session = self._session
        end = time.monotonic() + _CELLS_FIRST_S
        while (
            id in session.timeline
            and session.timeline[id].is_auto
            and not (self._awaited or session.is_ending or session.router.at_rest)
            and time.monotonic() < end
        ):
            await asyncio.sleep(_LOOK_S)

    async def published(self, id: str) -> None:
        """Wait until a checkpoint is in the store as it is now, or could not be written."""
        session = self._session
        with self._awaiting():
            while id in session.persistence.unpublished and self.publishing:
                await asyncio.wait(self.publishing)
        await session.persistence.written()

    async def all_published(self) -> None:
        """Wait for what is being written, 20 seconds at most."""
        if self.publishing:
            with self._awaiting():
                await asyncio.wait(self.publishing, timeout=_PUBLISH_S)

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        """Somebody waits: nothing is put off."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1

    # The environment's layers

    def layers_in_use(self) -> set[str]:
        """The layers of the environment that some checkpoint needs."""
        found: set[str] = set()
        for checkpoint in self._session.timeline:
            found |= layers_of(checkpoint.capture("filesystem", engine="overlay"))
        return found

    # Commits of a container's own layer

    def tidy_commits(self) -> None:
        """Let old automatic checkpoints go without theirs, and remove what none names; later."""
        if self._session.layer.enabled:
            self._session.background(self._tidy_commits())

    async def _tidy_commits(self) -> None:
        session = self._session
        kept: set[str] = set()
        for checkpoint in reversed(list(session.timeline)):
            capture = capture_of(checkpoint)
            if capture is None or (image := image_of(capture)) in kept:
                continue
            if checkpoint.is_kept or len(kept) < _COMMITS_LAST:
                kept.add(image)
            else:
                why = "newer commits took its place"
                self.put(checkpoint.id, replace(capture, state="evicted", error=why, details={}))
        try:
            await session.layer.keep(session.timeline)
        except CommitRefused as error:
            session.log.warning("Commits were not removed: %s", error)

    async def tidy_environment(self) -> None:
        """Merge layers, let checkpoints name the merged ones, delete what nothing needs."""
        session = self._session
        async with self._tidying:
            captures = [c.capture("filesystem", engine="overlay") for c in session.timeline]
            merged = await session.environment.upkeep(captures, session.lock)
            if merged:
                await session.environment.flush()
            async with session.lock:
                for checkpoint in list(session.timeline) if merged else ():
                    capture = checkpoint.capture("filesystem", engine="overlay")
                    new = session.environment.rewritten(capture) if capture is not None else None
                    if new is not None:
                        changed = session.timeline.set_capture(checkpoint.id, new)
                        session.persistence.save(session.timeline, changed)
                await session.persistence.written()
                await session.environment.collect(self.layers_in_use())
