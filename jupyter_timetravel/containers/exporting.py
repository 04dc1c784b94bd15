"""A checkpoint's environment as an image: the base's layers, and the session's on top of them.

The session's layers are overlay layers, as an image's are; only how a deletion is written differs.
Each directory that is covered has a stack of its own, so the image's first layer above the base
holds the oldest one of every stack, its second the next, and so on.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from jupyter_timetravel.containers import archive
from jupyter_timetravel.containers.daemon import Daemon
from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.containers.image_layers import check_name, for_image
from jupyter_timetravel.exchange import layers
from jupyter_timetravel.exchange.layers import LayerEntry
from jupyter_timetravel.exchange.members import BadMember, Kind, Member
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session, snapshot_of
from kernel_runtime.engines.overlay.stack import Stack
from kernel_runtime.engines.workspace.export import read_content
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.tree import Reader, TreeDamaged, decode_row
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.blobs import BlobStore, Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline import Checkpoint

BASE_FILE: Final = "image.json"
"""Two levels above the store of containers: name and id of the image that they were made of."""
OURS: Final = "/var/lib/timetravel"
"""What the provisioner mounts: not part of the environment."""
_KINDS: Final[dict[str, Kind]] = {"f": "file", "d": "directory", "l": "symlink", "p": "fifo"}
MOST_LAYERS: Final = 125
"""Docker's overlay2 driver takes no more."""


class CheckpointImage:
    """One checkpoint as an image."""

    def __init__(self, session: Session, checkpoint: Checkpoint, *, workspace: bool) -> None:
        """Raises ContainerError where the checkpoint does not hold what is asked for."""
        self._session, self._checkpoint, self._workspace = session, checkpoint, workspace
        overlay = overlay_of(checkpoint)
        if overlay is None and not workspace:
            raise ContainerError(
                f"#{checkpoint.number} holds no environment. No image was made; choose another "
                "checkpoint, or add --workspace for the notebook's files."
            )
        self._stacks: dict[str, Sequence[str]] = {}
        self._environment: StoredEnvironment | None = None
        if overlay is not None:
            try:
                self._environment = StoredEnvironment(session.environment)
                self._stacks = dict(self._environment.stacks_of(overlay))
            except EnvironmentRefused as error:
                raise ContainerError(f"{error} No image was made.") from error

    def build(self, base: archive.Image, directory: Path) -> archive.Image:
        """Put the layers on a base; files of theirs go into a directory. Raises ContainerError."""
        try:
            for number, entries in enumerate(self._levels(), 1):
                layer = archive.make_layer(entries, directory / f"ours{number}")
                base.add(layer, f"jupyter timetravel: environment of #{self._checkpoint.number}")
            if self._workspace:
                layer = archive.make_layer(self._files(), directory / "workspace")
                base.add(layer, f"jupyter timetravel: workspace of #{self._checkpoint.number}")
        except BadMember as error:
            raise ContainerError(
                f"#{self._checkpoint.number} has /{error.name.lstrip('/')}, and {error.cause}. No "
                "image was made; export to a file for another machine's sessions (-o FILE without "
                "--image) takes it, or take a checkpoint without it."
            ) from error
        except (OSError, ValueError, StoreError, TreeDamaged) as error:
            raise ContainerError(
                f"#{self._checkpoint.number} could not be read whole: {error}. No image was made; "
                "try again when no kernel runs on it, or take another checkpoint."
            ) from error
        if len(base.layers) > MOST_LAYERS:
            raise ContainerError(
                f"The image would have {len(base.layers)} layers; Docker takes {MOST_LAYERS}. No "
                "image was made. `jupyter timetravel prune` merges layers of older checkpoints."
            )
        return base

    def _levels(self) -> Iterator[Iterator[LayerEntry]]:
        environment = self._environment
        if environment is None:
            return
        stacks = {
            root: [one for one in reversed(stack) if not environment.directory.is_empty(one)]
            for root, stack in sorted(self._stacks.items())
            if root != OURS and not root.startswith(f"{OURS}/")
        }
        for level in range(max(map(len, stacks.values()), default=0)):
            here = [(root, stack) for root, stack in stacks.items() if level < len(stack)]
            yield chain.from_iterable(self._layer(environment, *one, level) for one in here)

    @staticmethod
    def _layer(
        environment: StoredEnvironment, root: str, oldest_first: Sequence[str], level: int
    ) -> Iterator[LayerEntry]:
        files = [environment.directory.files(layer) for layer in oldest_first]
        top, prefix, markers = files[level], root.strip("/"), environment.markers
        with Stack(files[::-1], None, markers) as stack:

            def is_shown(path: bytes) -> bool:
                found = stack.lookup(path)
                here = os.lstat(os.path.join(os.fsencode(top), path))
                return found is not None and os.path.samestat(found.stat, here)

            yield from for_image(layers.entries(top, prefix, markers), prefix, is_shown)

    def _files(self) -> Iterator[LayerEntry]:
        """The workspace, in the places where it was."""
        snapshot = snapshot_of(self._checkpoint)
        if snapshot is None:
            raise ContainerError(
                f"#{self._checkpoint.number} holds no files of the workspace. No image was made; "
                "leave --workspace out."
            )
        blobs = BlobStore(self._session.store.directory)
        reader = Reader.of(blobs)
        for row in json.loads(blobs.get(Digest(snapshot)))["roots"]:
            if row["entry"] is None:
                continue
            top = row["path"].strip("/")
            root = decode_row(row["entry"])
            yield _stored(blobs, top, root)
            for path, entry in reader.walk(root.tree) if root.kind == "d" else ():
                yield _stored(blobs, f"{top}/{path.decode('utf-8', 'surrogateescape')}", entry)


def _stored(blobs: BlobStore, name: str, entry: Entry) -> LayerEntry:
    """A file of a snapshot as an entry of a layer. Hard links become files of their own.

    Raises BadMember.
    """
    check_name(name)
    member = Member(
        name,
        _KINDS[entry.kind],
        size=entry.size if entry.kind == "f" else 0,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        target=entry.target.decode("utf-8", "surrogateescape"),
    )
    return LayerEntry(
        member, read=partial(read_content, blobs, entry) if entry.kind == "f" else None
    )


def default_base(store: Path) -> str | None:
    """The image whose containers keep their sessions in a store, if it is such a store."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads((store.parent.parent / BASE_FILE).read_text("utf-8"))["id"])
    return None


def export(
    made: CheckpointImage, name: str, *, base: str | None, file: Path | None, store: Path
) -> None:
    """Make the image: in the daemon, or as a file. base: an image's name, or a saved image's file.

    Raises ContainerError; then there is no image and no file.
    """
    base = base or default_base(store)
    if base is None:
        raise ContainerError(
            "This session did not run in a container, so it says nothing of an image to build on. "
            "No image was made; name one whose files are like this machine's (--base IMAGE)."
        )
    with ExitStack() as stack:
        try:
            beside = file.parent if file is not None else None
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="timetravel-", dir=beside))
            )
            saved = Path(base)
            daemon: Daemon | None = None
            if file is None or not saved.is_file():
                daemon = stack.enter_context(closing(Daemon()))
            if daemon is not None and not saved.is_file():
                saved = directory / "base.tar"
                daemon.save(base, saved)
            image = made.build(archive.read(saved, directory), directory)
            written = directory / "image.tar"
            archive.write(image, name, written)
            if file is not None:
                written.replace(file)
            elif daemon is not None:
                daemon.load(written)
        except OSError as error:
            raise ContainerError(
                f"No image was made: {error}. It takes room for two copies of the base meanwhile."
            ) from error
