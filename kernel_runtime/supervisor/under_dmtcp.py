"""A session whose executor runs under DMTCP: what is different from one that is frozen by `fork`.

An image is made at the checkpoint itself, not after it, so a checkpoint's process capture is
durable from the start: its row is written once the image is on the disk. `Session.frozen` has an
entry with no process behind it for each image that can be restarted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernel_runtime.engines.base import Frozen
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import Capture, Checkpoint

if TYPE_CHECKING:
    # imported where a session runs under it: each other one would start later
    from kernel_runtime.engines.dmtcp import DmtcpEngine
    from kernel_runtime.supervisor.session import Session

NAME: Final = "dmtcp"

_MALLOC: Final = "_RJEM_MALLOC_CONF"
_NO_THREAD: Final = "background_thread:false"
"""A thread that jemalloc (in polars) starts past DMTCP's wrappers ends the process."""

_GENTLE: Final = {
    _MALLOC: _NO_THREAD,
    # OpenBLAS (in numpy) joins its threads in fork(), and DMTCP lets no thread end there
    "OPENBLAS_NUM_THREADS": "1",
}
"""Set where the user has not: without them DMTCP 5.0 ends or blocks the process."""

LIMIT: Final = (
    "The kernel runs under DMTCP: child processes come back with it, and each checkpoint is a "
    "whole image. numpy computes in one thread (OPENBLAS_NUM_THREADS=1); docs/dmtcp.md says why, "
    "and what else is different."
)

UNREAD: Final = (
    "A copy of the session that was to write its variables did not end under DMTCP: it may wait "
    "for a lock that another thread held. In this kernel variables are not written apart from the "
    "processes any more; those come back as before."
)


class UnderDmtcp:
    """The engine's place in one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine: DmtcpEngine | None = None

    @property
    def wanted(self) -> bool:
        """Whether the session is to run under DMTCP."""
        return self._session.config.process_engine == NAME

    @property
    def shared(self) -> list[Path]:
        """The directory that is the host's own inside too, made: images pass through it.

        Beside the store, so that files are moved and not copied; the same for each kernel of a
        timeline, since a process that comes back looks for its link there.
        """
        store = self._session.persistence.directory
        if not self.wanted or store is None:
            return []
        path = Path(f"{store}-dmtcp") / self._session.timeline.id
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [path.resolve()]

    async def begin(self, engine: object) -> None:
        """Start the engine of a session that wanted it. Raises EnvironmentRefused, DmtcpError."""
        from kernel_runtime.engines.dmtcp import DmtcpEngine

        session = self._session
        assert isinstance(engine, DmtcpEngine)
        directory = session.persistence.directory
        if directory is None:
            raise EnvironmentRefused(
                f"This kernel runs no cell: Supervisor.process_engine is dmtcp, whose images need "
                f"a store. {session.persistence.problem}"
            )
        if session.persistence.is_encrypted:
            raise EnvironmentRefused(
                "This kernel runs no cell: Supervisor.process_engine is dmtcp and the store is "
                "encrypted. DMTCP writes images as they are. Use Supervisor.process_engine=fork, "
                "or a store that is not encrypted on an encrypted disk."
            )
        await engine.begin(session.sandbox, directory, self.shared[0], session.cwd)
        engine.on_failed = self._failed
        engine.is_read = session.durability.reads
        engine.on_unread = lambda: session.router.say_next(UNREAD)
        self._engine = engine
        session.limits.append(LIMIT)

    async def launch(self, argv: list[str]) -> list[str]:
        """The command line of an executor. Raises SandboxError."""
        return argv if self._engine is None else await self._engine.launch(argv)

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """What an executor's environment is to be."""
        if self._engine is None:
            return env
        from kernel_runtime.dmtcp import clean_environment

        found = {**_GENTLE, **clean_environment(env)}
        # polars sets it where it is imported, so a server that has imported it passes that on; of
        # an option that is there twice jemalloc takes the last one
        if _NO_THREAD not in found[_MALLOC].split(","):
            found[_MALLOC] += f",{_NO_THREAD}"
        return found

    async def flush(self) -> None:
        """Wait until what checkpoints name is on the disk."""
        if self._engine is not None:
            await self._engine.flush()

    async def close(self) -> None:
        """End the coordinator, after the sandbox."""
        if self._engine is not None:
            await self._engine.close()

    def stored(self, checkpoint: Checkpoint) -> Frozen | None:
        """What the engine restarts a checkpoint from, where it was made by an earlier kernel."""
        capture = image_of(checkpoint)
        if self._engine is None or capture is None or capture.ref is None:
            return None
        return Frozen(checkpoint.id, 0, capture.ref, not_captured=list(capture.not_captured))

    def _failed(self, ref: str, why: str) -> None:
        """An image could not be written; the row that names it is not written yet."""
        session = self._session
        for id, frozen in list(session.frozen.items()):
            if frozen.address == ref:
                del session.frozen[id]
                session.captures.set_process_state(id, "failed", why)

    async def thin(self) -> None:
        """Give up the images of older automatic checkpoints: each is a whole one."""
        session = self._session
        if self._engine is None:
            return
        head = session.timeline.head
        held = [
            c
            for c in session.timeline
            if image_of(c) is not None
            and not (c.is_kept or c is head or c is session.timeline.last_safety)
        ]
        old = held[: -session.config.images_last or None]
        for checkpoint in old:
            capture = image_of(checkpoint)
            assert capture is not None
            why = "newer images took its place (Supervisor.images_last)"
            session.frozen.pop(checkpoint.id, None)
            session.captures.put(
                checkpoint.id, replace(capture, state="evicted", ref=None, error=why)
            )
        if old:
            await self.sweep()

    async def sweep(self) -> None:
        """Delete images that no checkpoint of any timeline names. Never raises."""
        session = self._session
        if session.persistence.directory is None:
            return
        from kernel_runtime.store.dmtcp_images import DmtcpImageStore

        store = DmtcpImageStore(session.persistence.directory)
        before_ns = time.time_ns()
        try:
            await session.persistence.written()
            kept = await asyncio.to_thread(session.persistence.dmtcp_images)
            kept |= {frozen.address for frozen in session.frozen.values()}
            await asyncio.to_thread(lambda: store.sweep(kept, before_ns=before_ns))
        except (StoreError, OSError) as error:
            session.log.warning("Images of DMTCP were not swept: %s", error)


def image_of(checkpoint: Checkpoint) -> Capture | None:
    """The image of a checkpoint's processes, if it can be restarted."""
    capture = checkpoint.capture("process", engine=NAME)
    return capture if capture is not None and capture.state == "ready" else None
