"""What the engine gives out: snapshots, changes, plans and results. Plain immutable data."""

from __future__ import annotations

from dataclasses import field
from typing import Final, Literal, NewType

from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import Digest

SnapshotId = NewType("SnapshotId", str)
"""Hash of a snapshot's root manifest: equal states have equal ids."""

Kind = Literal["f", "d", "l", "p"]
"""Regular file, directory, symbolic link, fifo."""

Chunk = tuple[int, int, Digest]
"""Offset and length in the file, and the blob that holds the bytes. What no chunk covers is
a hole and reads as zeros."""

ChangeKind = Literal["created", "deleted", "changed", "type", "mode", "meta", "renamed", "links"]


@dataclass(frozen=True)
class Entry:
    """One path of a snapshot, without its parent directory.

    mode: permission bits, 07777. size in bytes. link: names a group of hard links; the same
    in all of its members. held: "" if chunks hold the content, "clone" or "link" if the whole
    file is kept in the store unread under the name in the only chunk. tree: the manifest of a
    directory.
    """

    __slots__ = (
        "chunks", "gid", "held", "kind", "link", "mode", "mtime_ns", "name", "size", "target",
        "tree", "uid", "xattrs",
    )  # fmt: skip
    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    chunks: tuple[Chunk, ...]
    target: bytes
    tree: str
    link: str
    held: str
    xattrs: tuple[tuple[str, bytes], ...]

    @property
    def content(self) -> tuple[object, ...]:
        """What must be equal for two entries to read the same."""
        return (self.kind, self.size, self.chunks, self.target)

    @property
    def meta(self) -> tuple[object, ...]:
        """What can be put right without writing content."""
        return (self.mode, self.uid, self.gid, self.mtime_ns, self.xattrs)


@dataclass(frozen=True)
class LeftOut:
    """A path that a snapshot does not hold, or not fully.

    absent: nothing of it is in the snapshot, and a restore leaves the path alone. Otherwise
    it is in the snapshot, with the restriction that reason names.
    """

    root: int
    path: bytes
    reason: str
    absent: bool


@dataclass(frozen=True)
class Snapshot:
    """What one capture found.

    changed: paths that differ from the capture before. copied_bytes: what the store grew by.
    excluded: how many paths the rules left out (a directory counts as one).
    how: "watched" if only directories with change notices were looked at, else "scanned".
    """

    id: SnapshotId
    label: str
    files: int
    directories: int
    bytes: int
    changed: int
    copied_bytes: int
    excluded: int
    left_out: tuple[LeftOut, ...]
    how: str
    took_s: float


@dataclass(frozen=True)
class Change:
    """One difference. For "renamed", path is the new and old_path the former path."""

    root: int
    path: bytes
    kind: ChangeKind
    size_before: int | None
    size_after: int | None
    old_path: bytes | None = None


@dataclass(frozen=True)
class Part:
    """Which files a restore is to bring back.

    only: paths, each with the number of its root, and what is below them; None: all.
    keep_notebooks: every notebook document stays, as when it is not known which one is the
    session's: others may have theirs open in the same directory.
    """

    only: frozenset[tuple[int, bytes]] | None = None
    keep_notebooks: bool = False


ALL_FILES: Final = Part()


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do, checked as far as can be without doing it.

    changes: from the directory as it is to the snapshot. kept: paths that differ and stay as
    they are, with the reason. problems: why the restore would be refused. warnings: what will
    come back not quite the same. bytes_to_write: room needed on the workspace's disk. part: which
    files are meant.
    """

    snapshot_id: SnapshotId
    present_id: SnapshotId
    changes: tuple[Change, ...]
    kept: tuple[LeftOut, ...]
    problems: tuple[tuple[bytes, str], ...]
    warnings: tuple[tuple[bytes, str], ...]
    excluded: int
    bytes_to_write: int
    include_documents: bool = False
    allow_missing: bool = False
    part: Part = ALL_FILES

    @property
    def done(self) -> list[Change]:
        """The changes that a restore makes: without what differs and stays (the notebook)."""
        kept = {(one.root, one.path) for one in self.kept}
        return [change for change in self.changes if (change.root, change.path) not in kept]


@dataclass(frozen=True)
class KeptAside:
    """Something that was replaced or deleted though the safety snapshot did not hold it."""

    root: int
    path: bytes
    saved_as: bytes
    reason: str


@dataclass(frozen=True)
class RestoreResult:
    """What a restore did. kept_aside_id is a snapshot with one entry for each kept_aside;
    whoever keeps the safety checkpoint must keep that too."""

    snapshot_id: SnapshotId
    written: int
    deleted: int
    meta_only: int
    written_bytes: int
    excluded: int
    kept: tuple[LeftOut, ...]
    kept_aside: tuple[KeptAside, ...]
    kept_aside_id: SnapshotId | None
    warnings: tuple[tuple[bytes, str], ...]
    took_s: float


@dataclass(frozen=True)
class RecoverResult:
    """What recover() found. outcome: "undone" (the tree from before the restore), "finished"
    (the restored tree), or "partly" with what is left in problems."""

    outcome: Literal["undone", "finished", "partly"]
    snapshot_id: SnapshotId | None
    problems: tuple[tuple[bytes, str], ...] = field(default=())
