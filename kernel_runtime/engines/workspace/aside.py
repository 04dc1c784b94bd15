"""Keeping what a restore moved away though the safety snapshot did not hold it.

Between the safety snapshot and the moment of replacing, another program may have written.
Whatever was moved to the trash is compared with what that snapshot saw; what differs is read
into the store and listed before the trash is deleted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import field, replace
from typing import Final

from kernel_runtime.engines.workspace.access import Access
from kernel_runtime.engines.workspace.model import Entry, KeptAside, SnapshotId
from kernel_runtime.engines.workspace.reading import FileReader, Unstable
from kernel_runtime.engines.workspace.snapshots import write_entries
from kernel_runtime.engines.workspace.state import DirState, Known
from kernel_runtime.engines.workspace.tree import make_entry
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobStore, Digest

_SEEN: Final = "changed by another program after the safety checkpoint"


class CannotKeep(OSError):
    """Something unexpected was in the way and cannot be read, so it must not be deleted."""


@dataclass
class Aside:
    """Collects what has to be kept. snapshot_id: set by finish() if there was anything."""

    store: BlobStore
    reader: FileReader
    access: Access
    rules: tuple[str, ...]
    kept: list[KeptAside] = field(default_factory=list)
    snapshot_id: SnapshotId | None = None
    _entries: list[Entry] = field(default_factory=list)

    def inspect(
        self, dir_fd: int, name: bytes, expected: Known | DirState | None, root: int, path: bytes
    ) -> None:
        """Compare one thing that was moved away with what was expected. Raises CannotKeep."""
        found = self.access.lstat(dir_fd, name)
        if stat.S_ISDIR(found.st_mode):
            known = expected if isinstance(expected, DirState) else None
            self._directory(dir_fd, name, known, root, path)
            return
        known_file = expected if isinstance(expected, Known) else None
        if stat.S_ISREG(found.st_mode):
            self._file(dir_fd, name, found, known_file, root, path)
        elif stat.S_ISLNK(found.st_mode):
            target = self.access.readlink(dir_fd, name)
            if known_file is None or known_file.entry.target != target:
                entry = make_entry(
                    b"", "l", 0o777, found.st_uid, found.st_gid, found.st_mtime_ns, target=target
                )
                self._keep(entry, root, path)
        # A socket, fifo or device has no content that could be lost.

    def finish(self) -> None:
        """Store the list of what was kept, until it is released as a snapshot is."""
        if self._entries:
            self.snapshot_id = write_entries(self.store, self._entries, self.rules)
            self.store.pin(Digest(self.snapshot_id))

    def _directory(
        self, dir_fd: int, name: bytes, known: DirState | None, root: int, path: bytes
    ) -> None:
        fd = self.access.open_dir(dir_fd, name)
        try:
            for child in sorted(os.fsencode(one) for one in os.listdir(fd)):
                expected: Known | DirState | None = None
                if known is not None:
                    expected = known.files.get(child) or known.dirs.get(child)
                self.inspect(fd, child, expected, root, path + b"/" + child)
        finally:
            os.close(fd)

    def _file(
        self,
        dir_fd: int,
        name: bytes,
        found: os.stat_result,
        known: Known | None,
        root: int,
        path: bytes,
    ) -> None:
        # Moving a file changes its ctime, so here only the rest of the key can be compared;
        # what was written at the very moment of the capture is read again.
        if known is not None and known.trusted:
            device, inode, size, mtime_ns, _, mode = known.key
            now = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
            if now == (device, inode, size, mtime_ns, mode):
                return
        try:
            entry = self.reader.read(dir_fd, name, found).entry
        except Unstable as torn:
            entry = torn.entry
        except OSError as cause:
            raise CannotKeep(
                cause.errno, f"appeared meanwhile and cannot be kept aside: {cause.strerror}"
            ) from cause
        if known is None or known.entry.content != entry.content:
            self._keep(entry, root, path)

    def _keep(self, entry: Entry, root: int, path: bytes) -> None:
        tail = path.rpartition(b"/")[2][:200]
        saved = b"%04d-" % (len(self._entries) + 1) + tail
        self._entries.append(replace(entry, name=saved, link=""))
        self.kept.append(KeptAside(root, path, saved, _SEEN))
