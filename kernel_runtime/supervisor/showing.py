"""Looking into checkpoints: what each changed, a file as it was, variables as they would be shown.

Asked for by whoever looks at a timeline, never by a cell. Changes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime import blob_channel
from kernel_runtime.blob_channel import ChannelError, ChannelSilent
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.names import from_printable
from kernel_runtime.errors import BadRequest, CheckpointRefused, NotShown
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import Capture, Checkpoint
from kernel_runtime.timeline.variables import diff as diff_variables

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

TEXT_MOST: Final = 256 << 10
"""Bytes of a text file that are shown; of what is longer, the beginning."""

IMAGE_MOST: Final = 4 << 20
VARIABLES_MOST: Final = 20
NAMES_SHOWN: Final = 12
_KNOWN_MOST: Final = 4096
_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_SIGNS: Final = {"created": "+", "deleted": "-"}

Counted = dict[str, Any]
"""``{"count": n, "names": [[sign, name], …]}``: the first names."""


class Showing:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    # What each checkpoint changed

    async def changes(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """What differs from its parent; None where it has none. Parts are None where unknown."""
        timeline = self._session.timeline
        parent = checkpoint.parent
        if parent is None or parent not in timeline:
            return None
        key = (parent, checkpoint.id)
        if key not in self._known:
            if len(self._known) >= _KNOWN_MOST:
                self._known.clear()
            self._known[key] = await self._changes(timeline[parent], checkpoint)
        return {"checkpoint": checkpoint.id, "parent": parent, **self._known[key]}

    async def _changes(self, before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
        session = self._session
        found = diff_variables(before.variables, after.variables)
        variables = [
            (sign, str(item["name"]))
            for sign, group in (("~", "changed"), ("+", "added"), ("-", "removed"))
            for item in found[group]
        ]
        await session.package_steps.learn(after)
        packages = session.package_steps.between(before, after)
        return {
            "variables": _counted(variables),
            "files": await self._files(before, after),
            "packages": None
            if packages is None
            else _counted((_package_sign(one), str(one["name"])) for one in packages),
        }

    async def _files(self, before: Checkpoint, after: Checkpoint) -> Counted | None:
        session = self._session
        refs = [_snapshot(one) for one in (before, after)]
        if session.files.enabled and refs[0] is not None and refs[1] is not None:
            if refs[0] == refs[1]:
                return _counted(())
            try:
                changes = await session.files.diff(refs[0], refs[1])
            except WorkspaceError:
                return None
            told = map(session.files.as_json, changes)
            return _counted((_SIGNS.get(one["kind"], "~"), one["path"]) for one in told)
        layers = [one.capture("filesystem", engine="overlay") for one in (before, after)]
        if not session.config.is_isolated or layers[0] is None or layers[1] is None:
            return None
        found = await session.environment_changes.compare(layers[0], layers[1], quick=True)
        return _counted((_SIGNS.get(one["kind"], "~"), one["path"]) for one in found["workspace"])

    # A file as it was

    async def file(self, checkpoint: Checkpoint | None, path: str, root: str | None) -> Counted:
        """A file of the workspace or of the environment; checkpoint: None for the present.

        path and root as in a change. Raises BadRequest, NotShown.
        """
        top = root or str(self._session.files.roots[0])
        name = from_printable(path)
        if b"\0" in name or b".." in name.split(b"/") or not os.path.isabs(top):
            raise BadRequest(f"{path!r} below {top!r} is no path of a file. Nothing was read.")
        whole = os.path.normpath(os.path.join(os.fsencode(top), name))
        try:
            data, size = await self._read(checkpoint, whole)
        except FileNotFoundError:
            return _shown(path, top, None, 0)
        except (OSError, WorkspaceError, StoreError) as error:
            raise NotShown(f"{path} cannot be shown: {error}") from error
        return _shown(path, top, data, size)

    async def _read(self, checkpoint: Checkpoint | None, whole: bytes) -> tuple[bytes, int]:
        """The beginning of a file, and how long it is. Raises OSError, WorkspaceError, NotShown."""
        session = self._session
        for number, top in enumerate(session.files.roots):
            if not session.files.enabled or not _is_in(whole, os.fsencode(top)):
                continue
            if checkpoint is None:
                return await asyncio.to_thread(_read_plain, whole)
            ref = _snapshot(checkpoint)
            if ref is None:
                raise NotShown(f"The files of #{checkpoint.number} are not held.")
            inside = os.path.relpath(whole, os.fsencode(top))
            return await session.files.read(ref, inside, number, IMAGE_MOST)
        return await self._read_environment(checkpoint, whole)

    async def _read_environment(
        self, checkpoint: Checkpoint | None, whole: bytes
    ) -> tuple[bytes, int]:
        session = self._session
        engine = session.environment.engine
        root = engine.plan.root_of(os.fsdecode(whole)) if engine is not None else None
        if engine is None or root is None:
            raise NotShown(f"{os.fsdecode(whole)} is in no directory that is rolled back.")
        if checkpoint is None:
            stacks: Mapping[str, Sequence[str]] = engine.present()
        else:
            capture = session.environment.capture_of(checkpoint)
            if capture is None:
                raise NotShown(f"The environment of #{checkpoint.number} is not held.")
            stacks = capture.details.get("stacks", {})
        view = engine.views(stacks)[root.path]
        inside = os.path.relpath(whole, os.fsencode(root.path))

        def read() -> tuple[bytes, int]:
            with view:
                found = view.lookup(inside)
                return view.read_bytes(inside, IMAGE_MOST), found.stat.st_size if found else 0

        return await asyncio.to_thread(read)

    # Variables as a notebook shows them

    async def variables(self, checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, Any]:
        """What a cell that ends with each of these names would show, by a copy of the process.

        The live session is not asked, and not slowed. Raises NotShown where there is no process.
        """
        session = self._session
        if checkpoint.id not in session.frozen:
            raise NotShown(
                f"The process of #{checkpoint.number} is not held any more, so its variables can "
                "be told in one line each, not shown. Go back to it, or bring them."
            )
        shown: dict[str, Any] = {}
        most_s = session.config.show_timeout
        try:
            async with session.durability.copy(checkpoint.id) as link:
                talking = asyncio.to_thread(_converse, link, list(names), shown, most_s)
                await asyncio.wait_for(talking, most_s)
        except (asyncio.TimeoutError, ChannelSilent):  # whichever of the two clocks is first
            why = f"it was not ready within {most_s:g} seconds"
        except (ChannelError, CheckpointRefused, OSError) as error:
            why = str(error)
        else:
            why = "it is not there"
        return {name: shown.get(name, {"error": why}) for name in names}


class _NoBlobs:
    """The store of a conversation that needs none."""

    def missing(self, digests: Sequence[str]) -> list[str]:
        return list(digests)

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        raise ChannelError("it sent a blob")

    def get(self, digest: str) -> bytes:
        raise ChannelError("it asked for a blob")


def _converse(link: socket.socket, names: list[str], shown: dict[str, Any], most_s: float) -> None:
    """In a thread: have a copy show variables, each as soon as it is ready."""

    def heard(words: dict[str, Any]) -> bool:
        if "name" in words:
            shown[str(words["name"])] = words["shown"]
        elif "error" in words:
            raise ChannelError(str(words["error"]))
        return bool(words.get("done"))

    link.settimeout(most_s)
    with contextlib.suppress(BrokenPipeError):  # it has ended: receiving says how
        blob_channel.say(link, command="show", names=names)
    blob_channel.serve(link, _NoBlobs(), heard)


def _read_plain(path: bytes) -> tuple[bytes, int]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a file with content")
        return file.read(IMAGE_MOST), found.st_size


def _shown(path: str, root: str, data: bytes | None, size: int) -> dict[str, Any]:
    """A file as docs/protocol.md has it."""
    told: dict[str, Any] = {"path": path, "root": root, "exists": data is not None, "size": None}
    told |= {"mime": None, "text": None, "data": None, "truncated": False}
    if data is None:
        return told
    told["size"] = size
    mime = next((name for magic, name in _IMAGES.items() if data.startswith(magic)), None)
    if mime is not None:
        whole = len(data) >= size
        told |= {"mime": mime, "truncated": not whole}
        told["data"] = base64.b64encode(data).decode("ascii") if whole else None
        return told
    part = data[:TEXT_MOST]
    with contextlib.suppress(UnicodeDecodeError):
        cut = len(part) < size
        text = part.decode("utf-8", "ignore" if cut else "strict")
        if "\0" not in text and len(text.encode()) > len(part) - 4:
            told |= {"mime": "text/plain", "text": text, "truncated": cut}
    return told


def _counted(names: Iterable[tuple[str, str]]) -> Counted:
    listed = list(names)
    return {"count": len(listed), "names": [list(one) for one in listed[:NAMES_SHOWN]]}


def _package_sign(package: Mapping[str, Any]) -> str:
    return "+" if package["before"] is None else "-" if package["after"] is None else "~"


def _snapshot(checkpoint: Checkpoint) -> str | None:
    capture: Capture | None = checkpoint.capture("filesystem", engine="workspace")
    return capture.ref if capture is not None and capture.state == "ready" else None


def _is_in(path: bytes, top: bytes) -> bool:
    return Path(os.fsdecode(path)).is_relative_to(os.fsdecode(top))
