"""A store as kernels leave it, made without one: a notebook's files, namespaces and rows."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store, open_store
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Capture, Coordinate, Timeline


class Session:
    """One notebook in a store below ``base``."""

    def __init__(self, base: Path, name: str = "n") -> None:
        self.base, self.directory = base, base / "store"
        self.keys = Keys(base / "keys")
        self.notebook = base / name / f"{name}.ipynb"
        self.notebook.parent.mkdir(exist_ok=True)
        self.notebook.write_text("{}")
        self.blobs = BlobStore(self.directory)
        self.namespaces = NamespaceStore(self.directory, self.keys)
        self.engine = WorkspaceEngine(
            [self.notebook.parent], self.blobs, journal_dir=self.directory / "journal"
        )
        self.store: Store = open_store(self.directory, self.keys)
        self.timeline: Timeline = self.store.load_timeline(str(self.notebook), "python3", epoch="e")
        self.written: dict[int, str] = {}
        """The variables that were written last, to which others may be deltas."""

    def write(self, name: str, data: str | bytes) -> None:
        """A cell writes a file."""
        path = self.notebook.parent / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def checkpoint(self, *variables: bytes, comment: str = "", **more: Any) -> str:
        """Make one that is durable, as the supervisor does: data, flush, then the row."""
        snapshot = self.engine.capture()
        with self.namespaces.writing():
            units = []
            for data in variables:
                digest = digest_of(data)
                if self.namespaces.missing([digest]):
                    self.namespaces.put(digest, data, self.written.get(len(units)))
                self.written[len(units)] = digest
                units.append(
                    {
                        "id": len(units),
                        "names": [f"v{len(units)}"],
                        "kind": "variables",
                        "needs": [],
                        "stream": [[digest, len(data)]],
                        "buffers": [],
                    }
                )
            made = self.namespaces.save_manifest({"version": 1, "units": units, "lost": []})
            self.blobs.flush()
            self.namespaces.flush()
            checkpoint = self.timeline.add(
                **{
                    "created_at": datetime.now(timezone.utc),
                    "reason": "manual",
                    "coordinate": Coordinate("e"),
                    "comment": comment,
                    "captures": [
                        Capture("filesystem", "workspace", "ready", 1, snapshot.id),
                        Capture("namespace", "dill", "ready", 1, made),
                    ],
                    **more,
                }
            )
            try:
                self.store.save(self.timeline.state, [checkpoint])
            except StoreError:
                self.timeline = self.store.look_at(self.timeline.id)
                raise
        return checkpoint.id

    def close(self) -> None:
        """The kernel ends."""
        self.engine.close()
        self.store.close()


def leave_store(base: Path, name: str = "n") -> Session:
    """Two checkpoints, in which one of the files and one of the variables changes; closed."""
    session = Session(base, name)
    with closing(session):
        session.write("same.txt", "c" * 100_000)
        session.write("changes.txt", "one" * 1000)
        session.checkpoint(b"same variable" * 100, os.urandom(5000), comment="one")
        session.write("changes.txt", "two" * 1000)
        session.checkpoint(b"same variable" * 100, os.urandom(5000), comment="two")
    return session


def blob_file(store: NamespaceStore, digest: str) -> Path:
    """Where a blob lies."""
    return store.path / "blobs" / digest[:2] / digest


def aged(store: NamespaceStore) -> NamespaceStore:
    """All that is there was written ten seconds ago: not in the tick of the coming sweep."""
    for digest in store.blobs():
        file = blob_file(store, digest)
        moment = file.stat().st_mtime - 10
        os.utime(file, (moment, moment))
    return store


def damage(file: Path) -> None:
    """One bit in its middle is another."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
