"""A snapshot's root manifest: reading, writing, and what it reaches in the store.

The manifest names the tree of each root, the rules that were in force, and a list of what was
left out. It has a serial number, so each capture is a snapshot of its own that can be released
for itself; the trees that it names are shared by all snapshots that have them in common.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines.workspace.errors import SnapshotUnknown
from kernel_runtime.engines.workspace.model import Entry, LeftOut, SnapshotId
from kernel_runtime.engines.workspace.names import to_bytes, to_text
from kernel_runtime.engines.workspace.state import DirState
from kernel_runtime.engines.workspace.tree import (
    TreeDamaged,
    decode_row,
    encode_row,
    make_entry,
    references,
    write_tree,
)
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobError, BlobStore, Digest

_FORMAT: Final = 1
_ROOT_NAME: Final = b"root"  # a row needs a name; that of a root lies outside of the tree


@dataclass(frozen=True)
class Manifest:
    """A root manifest as read. roots: the path at capture and the entry of the directory,
    None where it was not there."""

    id: SnapshotId
    roots: tuple[tuple[Path, Entry | None], ...]
    rules: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    files: int
    directories: int
    bytes: int
    excluded: int


def build_trees(store: BlobStore, state: DirState) -> None:
    """Write the manifests that are stale at and below a directory, and add up its totals."""
    for below in state.dirs.values():
        if below.tree is None:
            build_trees(store, below)
    state.tree, state.pages = write_tree(
        store, state.names(), state.child, state.changed, state.pages
    )
    state.changed = set()
    below_all = state.dirs.values()
    state.total_files = len(state.files) + sum(d.total_files for d in below_all)
    state.total_dirs = len(state.dirs) + sum(d.total_dirs for d in below_all)
    state.total_notes = len(state.notes) + sum(d.total_notes for d in below_all)
    state.total_excluded = len(state.excluded) + sum(d.total_excluded for d in below_all)
    state.total_bytes = sum(known.entry.size for known in state.files.values()) + sum(
        d.total_bytes for d in below_all
    )


def notes_below(root: int, state: DirState) -> Iterable[LeftOut]:
    """All notes at and below a directory; looks only where there are some."""
    pending = [state]
    while pending:
        at = pending.pop()
        for name, (reason, absent) in sorted(at.notes.items()):
            yield LeftOut(root, b"/".join((*at.path(), name)), reason, absent)
        pending.extend(below for below in at.dirs.values() if below.total_notes)


def write_manifest(
    store: BlobStore,
    roots: Sequence[tuple[Path, DirState | None]],
    rules: Sequence[str],
    left_out: Sequence[LeftOut],
) -> Manifest:
    """Store a root manifest; the trees are written already. Returns it with the snapshot's id."""
    states = [state for _, state in roots if state is not None]
    entries = tuple(
        (path, None if state is None else replace(state.entry, tree=state.tree or ""))
        for path, state in roots
    )
    manifest = Manifest(
        SnapshotId(""), entries, tuple(rules), tuple(left_out),
        files=sum(state.total_files for state in states),
        directories=sum(state.total_dirs + 1 for state in states),
        bytes=sum(state.total_bytes for state in states),
        excluded=sum(state.total_excluded for state in states),
    )  # fmt: skip
    return replace(manifest, id=put_manifest(store, manifest))


def put_manifest(store: BlobStore, manifest: Manifest) -> SnapshotId:
    """Store a root manifest under a serial number of its own; its id is what it gets."""
    rows: list[dict[str, Any]] = []
    for path, entry in manifest.roots:
        row = None if entry is None else encode_row(replace(entry, name=_ROOT_NAME))
        rows.append({"path": to_text(str(path).encode("utf-8", "surrogateescape")), "entry": row})
    omitted = None
    if manifest.left_out:
        listed = [
            [one.root, to_text(one.path), one.reason, one.absent] for one in manifest.left_out
        ]
        omitted = store.put(json.dumps(listed, separators=(",", ":")).encode("ascii"))
    value = {
        "format": _FORMAT,
        "serial": uuid.uuid4().hex,
        "roots": rows,
        "rules": list(manifest.rules),
        "left_out": omitted,
        "files": manifest.files,
        "directories": manifest.directories,
        "bytes": manifest.bytes,
        "excluded": manifest.excluded,
    }
    return SnapshotId(store.put(json.dumps(value, separators=(",", ":")).encode("ascii")))


def write_entries(store: BlobStore, entries: Sequence[Entry], rules: Sequence[str]) -> SnapshotId:
    """Store a snapshot that is a flat list of entries, under no directory of the user's."""
    by_name = {entry.name: entry for entry in entries}
    tree, _ = write_tree(store, by_name, by_name.__getitem__)
    state = DirState(b"", None, make_entry(b"", "d", 0o700, 0, 0, 0), (0, 0, 0, 0, 0, 0))
    state.tree = tree
    state.total_files = len(entries)
    state.total_bytes = sum(entry.size for entry in entries)
    return write_manifest(store, [(Path("kept-aside"), state)], rules, []).id


def read_manifest(store: BlobStore, snapshot_id: str) -> Manifest:
    """Read a root manifest. Raises SnapshotUnknown."""
    try:
        value = json.loads(store.get(Digest(snapshot_id)))
        if value["format"] != _FORMAT:
            raise SnapshotUnknown(snapshot_id, f"format {value['format']} is not known")
        left_out: tuple[LeftOut, ...] = ()
        if value["left_out"]:
            rows = json.loads(store.get(Digest(value["left_out"])))
            left_out = tuple(LeftOut(int(r), to_bytes(p), str(w), bool(a)) for r, p, w, a in rows)
        roots = tuple(
            (
                Path(row["path"]),
                None if row["entry"] is None else replace(decode_row(row["entry"]), name=b""),
            )
            for row in value["roots"]
        )
        return Manifest(
            SnapshotId(snapshot_id), roots, tuple(value["rules"]), left_out, value["files"],
            value["directories"], value["bytes"], value["excluded"],
        )  # fmt: skip
    except BlobError as cause:
        raise SnapshotUnknown(snapshot_id, str(cause)) from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise SnapshotUnknown(snapshot_id, f"its manifest is damaged ({cause})") from cause


def left_out_and_trees(store: BlobStore, snapshot_id: Digest) -> tuple[list[str], list[str]]:
    """What a root manifest names: the list of what was left out, if there is one, and directories.

    Raises BlobError; ValueError, KeyError, TypeError, IndexError where it is no manifest.
    """
    value = json.loads(store.get(snapshot_id))
    trees = [row["entry"][6] for row in value["roots"] if row["entry"]]
    return [value["left_out"]] if value["left_out"] else [], trees


def reachable(
    store: BlobStore, snapshot_ids: Iterable[str], known: Set[str] = frozenset()
) -> tuple[set[str], list[tuple[str, str]]]:
    """All blobs and held files that snapshots need; snapshots that could not be read, and why.

    A tree that is shared is walked once. known: what these reach is not looked at again, and is
    not in the answer.
    """
    found: set[str] = set()
    unread: list[tuple[str, str]] = []
    for snapshot_id in snapshot_ids:
        if snapshot_id in found or snapshot_id in known:
            continue
        found.add(snapshot_id)
        try:
            left_out, trees = left_out_and_trees(store, Digest(snapshot_id))
            found.update(left_out)
            _mark_trees(store, trees, found, known)
        except (BlobError, TreeDamaged) as cause:
            unread.append((snapshot_id, str(cause)))
        except (ValueError, KeyError, TypeError, IndexError) as cause:
            unread.append((snapshot_id, f"its manifest is damaged ({cause})"))
    return found - known, unread


def _mark_trees(store: BlobStore, trees: list[str], found: set[str], known: Set[str]) -> None:
    while trees:
        tree = trees.pop()
        if tree in found or tree in known:
            continue
        found.add(tree)
        below, blobs = references(store, tree)
        trees += below
        found.update(blobs)
