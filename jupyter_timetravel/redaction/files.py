"""Secrets in snapshots of the workspace: which paths hold one, and the snapshot without them.

A path that was taken out is noted in the snapshot as one that it does not hold: a restore leaves
what is there then alone, it does not delete it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.engines.workspace.export import read_content
from kernel_runtime.engines.workspace.model import Entry, LeftOut
from kernel_runtime.engines.workspace.snapshots import Manifest, put_manifest, read_manifest
from kernel_runtime.engines.workspace.tree import Reader, write_tree
from kernel_runtime.store.blobs import BlobError, BlobStore, Digest

REASON = "it was redacted"

At = tuple[int, bytes]
"""The number of a root, and a path below it."""


@dataclass
class Snapshots:
    """Looks into snapshots; what they have in common is read once."""

    store: BlobStore
    needle: Needle
    unread: dict[str, str] = field(default_factory=dict)
    """Paths that could not be read, so that nobody knows what is in them, and why."""
    _known: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def look(self, ref: str, former: Iterable[Path] = ()) -> set[At]:
        """The paths that have to go. former: other paths that its only root has, or had, by now.

        Raises SnapshotUnknown, BlobError, TreeDamaged.
        """
        manifest = read_manifest(self.store, ref)
        reader = Reader.of(self.store)
        found: set[At] = set()
        links: dict[str, list[At]] = {}
        for number, (top, root) in enumerate(manifest.roots):
            wanted = {os.fsencode(x) for x in self._wanted([top, *former])}
            if root is None:
                continue
            for path, entry in reader.walk(root.tree):
                at = (number, path)
                if entry.link:
                    links.setdefault(entry.link, []).append(at)
                if _is_meant(path, entry, wanted) or self._holds(path, entry):
                    found.add(at)
        found |= {
            (one.root, one.path) for one in manifest.left_out if self.needle.is_in([one.path])
        }
        for names in links.values():
            if not found.isdisjoint(names):
                found.update(names)
        return found

    def _wanted(self, tops: Iterable[Path]) -> Iterator[str]:
        for file in self.needle.files:
            for top in tops:
                if top.name == "kept-aside" and not top.is_absolute():
                    yield os.path.basename(file)
                elif Path(file).is_relative_to(top) and Path(file) != top:
                    yield str(Path(file).relative_to(top))

    def _holds(self, path: bytes, entry: Entry) -> bool:
        needle = self.needle
        if not needle.patterns:
            return False
        if needle.is_in([path, b"\n", entry.target]):
            return True
        if any(needle.is_in([value]) for _, value in entry.xattrs):
            return True
        if entry.kind != "f" or not entry.chunks:
            return False
        key = (entry.held, entry.size, entry.chunks)
        if key not in self._known:
            try:
                self._known[key] = needle.is_in(read_content(self.store, entry))
            except (BlobError, OSError) as error:
                self._known[key] = False
                self.unread[os.fsdecode(path)] = str(error).partition(". ")[0]
        return self._known[key]


def _is_meant(path: bytes, entry: Entry, wanted: set[bytes]) -> bool:
    """Whether it is one of these, or below one. What was kept aside is called NNNN-name."""
    return any(
        path == one or path.startswith(one + b"/") or (path[:4].isdigit() and path[5:] == one)
        for one in wanted
    )


def rewrite(store: BlobStore, ref: str, paths: Iterable[At], needle: Needle) -> str:
    """Store the snapshot without these paths, pinned; return its name. Raises as ``look``.

    A path that has the text in its own name is not noted: the note would be where it is.
    """
    manifest = read_manifest(store, ref)
    reader = Reader.of(store)
    gone: dict[int, set[bytes]] = {}
    for number, path in paths:
        gone.setdefault(number, set()).add(path)
    roots, dropped = [], []
    for number, (top, root) in enumerate(manifest.roots):
        if root is None or number not in gone:
            roots.append((top, root))
            continue
        for path, entry in reader.walk(root.tree):
            if _within(path, gone[number]):
                dropped.append(entry)
        tree = _without(store, reader, root.tree, b"", gone[number])
        roots.append((top, replace(root, tree=tree)))
    known = {(one.root, one.path) for one in manifest.left_out}
    noted = [
        *manifest.left_out,
        *(
            LeftOut(number, path, REASON, True)
            for number, all_paths in sorted(gone.items())
            for path in sorted(_tops(all_paths))
            if (number, path) not in known
        ),
    ]
    left_out = [one for one in noted if not needle.is_in([one.path])]
    made = put_manifest(store, _lessened(manifest, roots, left_out, dropped))
    store.pin(Digest(made))
    return made


def _lessened(
    manifest: Manifest,
    roots: list[tuple[Path, Entry | None]],
    left_out: list[LeftOut],
    dropped: list[Entry],
) -> Manifest:
    files = [entry for entry in dropped if entry.kind != "d"]
    return replace(
        manifest,
        roots=tuple(roots),
        left_out=tuple(left_out),
        files=manifest.files - len(files),
        directories=manifest.directories - (len(dropped) - len(files)),
        bytes=manifest.bytes - sum(entry.size for entry in files),
    )


def _without(store: BlobStore, reader: Reader, tree: str, path: bytes, gone: set[bytes]) -> str:
    """A directory without these paths: its manifest; nothing is written where none is below."""
    if not any(one.startswith(path + b"/" if path else b"") for one in gone):
        return tree
    entries: Mapping[bytes, Entry] = reader.directory(tree)
    kept: dict[bytes, Entry] = {}
    for name, entry in entries.items():
        below = path + b"/" + name if path else name
        if below in gone:
            continue
        if entry.kind == "d":
            entry = replace(entry, tree=_without(store, reader, entry.tree, below, gone))
        kept[name] = entry
    made, _ = write_tree(store, kept, kept.__getitem__)
    return made


def _within(path: bytes, gone: set[bytes]) -> bool:
    return any(path == one or path.startswith(one + b"/") for one in gone)


def _tops(paths: set[bytes]) -> set[bytes]:
    """Those that lie below no other of them."""
    return {one for one in paths if not any(one.startswith(top + b"/") for top in paths)}
