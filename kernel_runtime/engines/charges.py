"""What checkpoints take on the disk: what each needs, and what is freed if it goes.

A checkpoint has no size of its own where content is shared: see ``Stores.charges``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.snapshots import reachable
from kernel_runtime.later import dataclass
from kernel_runtime.store import dmtcp_images, dumps, images
from kernel_runtime.store.blobs import BlobStore, Digest
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline.model import Checkpoint

FOLDERS: Final = {"image": images.FOLDER, "criu": dumps.FOLDER, "dmtcp": dmtcp_images.FOLDER}
"""Where what was written of processes is, by engine."""


@dataclass
class Needs:
    """What checkpoints name: in the workspace's store, in those of namespaces and of notebooks as
    they were; directories of layers and of written processes."""

    files: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    layers: set[Path] = field(default_factory=set)
    processes: set[Path] = field(default_factory=set)


class Stores:
    """Where a store's data is, and how much room it takes."""

    def __init__(self, directory: Path) -> None:
        """directory: of the store. Raises StoreError, OSError."""
        self.directory = directory
        self.files = BlobStore(directory)
        self.namespaces = NamespaceStore(directory)
        self.documents = DocumentStore(directory)

    def needs(self, checkpoints: Iterable[Checkpoint], known: Needs | None = None) -> Needs:
        """What these need beyond what is known. What cannot be read needs nothing."""
        known = known or Needs()
        ready = [c for one in checkpoints for c in one.captures if c.state == "ready" and c.ref]
        snapshots = [c.ref or "" for c in ready if c.kind == "filesystem" and c.engine != "overlay"]
        files, _ = reachable(self.files, snapshots, known.files)
        contents: set[str] = set()
        for kind, store in (("namespace", self.namespaces), ("document", self.documents)):
            refs = {capture.ref or "" for capture in ready if capture.kind == kind}
            named = {name for ref in refs for name in _contents(store, ref)} - known.namespaces
            contents |= named | (store.bases(named) - known.namespaces)
        return Needs(files, contents)

    def room(self, files: Set[str], namespaces: Set[str]) -> int:
        """Bytes on the disk."""
        held = files & set(os.listdir(self.files.path / "held"))
        return (
            self.files.room(map(Digest, files))
            + room_of(self.files.held_path(Digest(name)) for name in held)
            + self.namespaces.bytes_of(namespaces)
            + self.documents.bytes_of(namespaces)
        )

    def unneeded(self, needed: Needs) -> int:
        """Bytes on the disk of what is stored and not among these."""
        files = {*self.files.blobs(), *os.listdir(self.files.path / "held")}
        contents = {*self.namespaces.blobs(), *self.documents.blobs()}
        return self.room(files - needed.files, contents - needed.namespaces)

    def charges(
        self,
        order: Iterable[Checkpoint],
        layers_of: Callable[[Checkpoint], Iterable[Path]],
        known: Needs,
    ) -> dict[str, int]:
        """Bytes on the disk that each checkpoint adds to what those before it need, by id.

        order: as ``charging_order`` has them. layers_of: the layers of its environment. known:
        what is not charged any more; it grows.
        """
        found: dict[str, int] = {}
        for checkpoint in order:
            new = self.needs([checkpoint], known)
            new.layers = set(layers_of(checkpoint)) - known.layers
            new.processes = self._processes(checkpoint) - known.processes
            found[checkpoint.id] = (
                self.room(new.files, new.namespaces)
                + room_of(new.layers, exclusive=True)
                + room_of(new.processes, exclusive=True)
            )
            known.files |= new.files
            known.namespaces |= new.namespaces
            known.layers |= new.layers
            known.processes |= new.processes
        return found

    def _processes(self, checkpoint: Checkpoint) -> set[Path]:
        """The directories of what was written of its process."""
        return {
            self.directory / FOLDERS[c.engine] / c.ref
            for c in checkpoint.captures
            if c.kind == "process" and c.state == "ready" and c.engine in FOLDERS and c.ref
        }


def _contents(store: NamespaceStore, manifest: str) -> set[str]:
    try:
        return {manifest, *store.needs(manifest)}
    except StoreError:
        return {manifest}


def room_of(paths: Iterable[Path], *, exclusive: bool = False) -> int:
    """Bytes on the disk. exclusive: only of files that have no other name elsewhere."""
    seen: dict[tuple[int, int], list[int]] = {}
    for path in paths:
        _add_up(str(path), seen)
    return sum(size for size, names, links in seen.values() if not exclusive or names >= links)


def _add_up(path: str, seen: dict[tuple[int, int], list[int]]) -> None:
    todo = [path]
    while todo:
        here = todo.pop()
        try:
            found = os.lstat(here)
            entries = list(os.scandir(here)) if os.path.isdir(here) else []
        except OSError:
            continue
        seen.setdefault((found.st_dev, found.st_ino), [found.st_blocks * 512, 1, 1])
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                    continue
                st = entry.stat(follow_symlinks=False)
                one = seen.setdefault((st.st_dev, st.st_ino), [st.st_blocks * 512, 0, st.st_nlink])
                one[1] += 1
