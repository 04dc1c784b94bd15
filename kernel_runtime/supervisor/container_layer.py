"""The own writable layer of a container that may make no namespaces, held by Docker's commits.

Whoever started the container makes them (jupyter_timetravel/containers/commits.py, which describes
the messages); this asks for one when the layer has changed. A commit holds all of the container's
changes since its start; one checkpoint after the other names the same as long as nothing changed.
Mounts (workspace, home, store, /dev) are in none; /tmp, /run and caches go along with the others.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.supervisor.own_layer import OwnLayer
from kernel_runtime.timeline.model import Capture, Checkpoint

VARIABLE: Final = "JUPYTER_TIMETRAVEL_COMMITS"
"""Names the socket of whoever makes commits."""
NAME: Final = "commit"
"""Of the engine, in captures."""
_PATIENCE_S: Final = 600.0
"""Seconds that a commit may take."""
NOT_YET: Final = "the container's own layer is not looked at yet"


class CommitRefused(TimeTravelError):
    """The container's own layer was not committed, or no other container can take its place."""


class ContainerLayer:
    """Of one session."""

    def __init__(self, timeline: str, *, is_notebooks: bool) -> None:
        """Where there is nobody to ask, it is off. is_notebooks: the timeline is the notebook's,
        not that of a second kernel or of none."""
        self._address = os.environ.get(VARIABLE, "")
        for name in os.environ.pop(f"{VARIABLE}_UNSET", "").split(","):
            os.environ.pop(name, None)
        self._timeline, self._is_notebooks = timeline, is_notebooks
        self._own: OwnLayer | None = None
        self._changed = True
        self.image = ""
        """The last commit, or what the container was started from."""
        self.why = ""
        """Why the container is not of the image that was asked for."""
        self.replaced = False
        """Whether it took another one's place, and clients wait for its answers."""

    @property
    def enabled(self) -> bool:
        """Whether the layer is captured."""
        return bool(self._address)

    async def start(self, apart: Iterable[Path]) -> None:
        """Look at the layer as it is now: the image that the container was started from.

        apart: directories that are no matter of the container's. Raises CommitRefused.
        """
        told = await self.ask(do="hello")
        self.image, self.why = told["image"], told["why"]
        self.replaced = bool(told["replaced"])
        self._own = await asyncio.to_thread(OwnLayer, apart)
        self._changed = False

    async def capture(self) -> Capture:
        """Commit it, if it has changed. A failure is a failed capture, not an error."""
        made = 0
        try:
            if await self._is_changed():
                told = await self.ask(
                    do="capture", timeline=self._timeline, present=self._is_notebooks
                )
                self.image, made = told["image"], told["bytes"]
                self._changed = False
        except CommitRefused as error:
            return Capture("filesystem", NAME, "failed", error=str(error))
        # no ref: that is for what lies in the store
        return Capture("filesystem", NAME, "ready", bytes=made, details={"image": self.image})

    async def _is_changed(self) -> bool:
        if self._own is None:
            raise CommitRefused(NOT_YET)
        # asked before the commit: what changes meanwhile is in the next one, not in none
        self._changed |= await asyncio.to_thread(self._own.renew)
        return self._changed

    async def is_at(self, capture: Capture) -> bool:
        """Whether the layer is as a capture has it."""
        return image_of(capture) == self.image and not await self._is_changed()

    async def left_as_is(self, checkpoint: Checkpoint) -> str:
        """What to say, after a blank, where a checkpoint has other files than the container."""
        held = capture_of(checkpoint) if self.enabled else None
        try:
            if held is None or await self.is_at(held):
                return ""
        except CommitRefused:
            return ""
        return (
            " The container's own files stay as they are: "
            f"`%restore {checkpoint.number}` brings them back too."
        )

    async def replace(self, image: str, back: str) -> None:
        """When this container ends, one of another image takes its place, one of ``back`` if that
        does not come up. Raises CommitRefused; nothing was changed."""
        await self.ask(do="replace", image=image, back=back)

    async def stay(self) -> None:
        """Nothing takes its place. Raises CommitRefused."""
        await self.ask(do="replace", image=None, back=self.image)

    async def arrived(self) -> None:
        """The session works in this container. Raises CommitRefused."""
        await self.ask(do="arrived")

    async def keep(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Other commits of this session may go. Raises CommitRefused."""
        kept = {image_of(found) for one in checkpoints if (found := capture_of(one)) is not None}
        kept.add(self.image)
        await self.ask(do="keep", timeline=self._timeline, images=sorted(kept))

    async def ask(self, **what: Any) -> dict[str, Any]:
        """One message and its answer. Raises CommitRefused."""
        try:
            told = json.loads(await asyncio.wait_for(self._ask(what), _PATIENCE_S))
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise CommitRefused(
                "The Jupyter server that started this container does not answer, and it makes the "
                f"commits ({error or type(error).__name__}). Open the notebook in it again."
            ) from error
        if "error" in told:
            raise CommitRefused(str(told["error"]))
        return dict(told)

    async def _ask(self, what: dict[str, Any]) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._address)
        try:
            writer.write(json.dumps(what).encode() + b"\n")
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()


def capture_of(checkpoint: Checkpoint) -> Capture | None:
    """The commit of a checkpoint, if there is one."""
    capture = checkpoint.capture("filesystem", engine=NAME)
    return capture if capture is not None and capture.state == "ready" else None


def image_of(capture: Capture) -> str:
    """The id of its image."""
    return str(capture.details.get("image", ""))
