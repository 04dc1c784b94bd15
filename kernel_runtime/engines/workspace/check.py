"""Whether a restore can succeed, as far as that can be told without doing it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Final

from kernel_runtime.engines.workspace import linux
from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.operations import Operations, Parts, Place, join
from kernel_runtime.engines.workspace.state import DirState, Known
from kernel_runtime.engines.workspace.tree import Reader
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobStore

_BLOCK: Final = 4096
_SPARE: Final = 1 << 20
"""Bytes that a restore leaves free on the disk: directories and journals need some too."""

Problem = tuple[bytes, str]


@dataclass
class Findings:
    """problems: what would stop the restore. unreadable: files whose content is missing."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unreadable: list[tuple[Place, bytes, str]] = field(default_factory=list)
    bytes_to_write: int = 0


def check(
    store: BlobStore, reader: Reader, operations: Operations, anchors: Mapping[int, Anchor]
) -> Findings:
    """Look at everything that the operations need. Raises BlobError, TreeDamaged."""
    found = Findings()
    needed: dict[int, int] = {}
    for place in operations.places:
        room = 0
        for path, entry in _all_entries(reader, place):
            missing = _missing(store, entry)
            if missing:
                found.unreadable.append((place, path, missing))
            room += _room(entry)
            _owner(path, entry, found)
        needed[place.root] = needed.get(place.root, 0) + room
    found.bytes_to_write = sum(needed.values())
    for root, room in needed.items():
        _disk(anchors[root], room, found)
    parents: dict[tuple[int, Parts], None] = {}
    for place in operations.places:
        parents[place.root, place.parent] = None
        if place.present is not None:
            _attributes(anchors[place.root], place.parent, place.name, place.present, found)
    for drop in operations.drops:
        parents[drop.root, drop.parent] = None
        _attributes(anchors[drop.root], drop.parent, drop.name, drop.present, found)
    for meta in operations.remetas:
        _attributes(
            anchors[meta.root], meta.parent, meta.target.name, meta.present, found, alone=True
        )
    for directory in operations.directories:
        parents[directory.root, directory.parts] = None
    for root, parts in parents:
        _directory(anchors[root], parts, found)
    return found


def _all_entries(reader: Reader, place: Place) -> Iterator[tuple[bytes, Entry]]:
    path = join(place.parent, place.name)
    yield path, place.target
    if place.target.kind == "d":
        yield from reader.walk(place.target.tree, path)


def _missing(store: BlobStore, entry: Entry) -> str:
    for _, length, digest in entry.chunks:
        if entry.held:
            if not store.held_path(digest).is_file():
                return "the file that was held for it is not in the store any more"
        elif not store.has(digest, length):
            return f"blob {digest[:12]} is missing from the store, or was cut short"
    return ""


def _room(entry: Entry) -> int:
    if entry.held:
        return _BLOCK
    return _BLOCK + sum(-(-length // _BLOCK) * _BLOCK for _, length, _ in entry.chunks)


def _owner(path: bytes, entry: Entry, found: Findings) -> None:
    me = os.geteuid()
    if me != 0 and entry.uid != me:
        found.warnings.append((path, f"belonged to user {entry.uid} and will be yours"))


def _disk(anchor: Anchor, room: int, found: Findings) -> None:
    disk = os.statvfs(anchor.fd)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_flag & os.ST_RDONLY:
        found.problems.append((b"", "the filesystem is mounted read-only"))
    elif room and room + _SPARE > free:
        found.problems.append(
            (b"", f"not enough room: {room + _SPARE} bytes are needed, {free} are free")
        )


def _attributes(
    anchor: Anchor,
    parent: Parts,
    name: bytes,
    present: Known | DirState,
    found: Findings,
    *,
    alone: bool = False,
) -> None:
    """Immutable and append-only files cannot be replaced, nor what holds one be deleted."""
    pending: list[tuple[Parts, bytes, Known | DirState]] = [(parent, name, present)]
    while pending:
        parts, at, item = pending.pop()
        try:
            fd = anchor.open(parts)
        except OSError:
            continue  # not searchable for now, or gone: the step itself will tell
        try:
            attribute = linux.protected_attributes(fd, at)
            if attribute:
                reason = f"the file is {attribute} (lsattr shows it, chattr changes it)"
                found.problems.append((join(parts, at), reason))
            elif not alone and not _movable(fd, at, item):
                found.problems.append((join(parts, at), "belongs to someone else"))
        except OSError:
            continue
        finally:
            os.close(fd)
        if isinstance(item, DirState) and not alone:
            below = (*parts, at)
            pending += [(below, child, known) for child, known in item.files.items()]
            pending += [(below, child, known) for child, known in item.dirs.items()]


def _movable(fd: int, name: bytes, item: Known | DirState) -> bool:
    """Whether this user may rename an entry away, as far as its owner decides that."""
    me = os.geteuid()
    if me == 0 or item.entry.uid == me:
        return True
    parent = os.fstat(fd)
    if parent.st_mode & stat.S_ISVTX and parent.st_uid != me:
        return False
    if isinstance(item, DirState):  # its ".." is written
        return os.access(name, os.W_OK, dir_fd=fd, follow_symlinks=False)
    return True


def _directory(anchor: Anchor, parts: Parts, found: Findings) -> None:
    """A directory in which names change must be ours, or be open to us."""
    try:
        fd = anchor.open(parts)
    except OSError:
        return
    try:
        state = os.fstat(fd)
        if os.geteuid() == 0 or state.st_uid == os.geteuid():
            attribute = linux.protected_attributes(fd, b".") if _searchable(fd) else ""
            if attribute:
                found.problems.append((b"/".join(parts), f"the directory is {attribute}"))
        elif not os.access(f"/proc/self/fd/{fd}", os.W_OK | os.X_OK):
            found.problems.append((b"/".join(parts), "no permission to write in this directory"))
    except OSError:
        return
    finally:
        os.close(fd)


def _searchable(fd: int) -> bool:
    return os.access(f"/proc/self/fd/{fd}", os.X_OK)
