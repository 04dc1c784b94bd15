"""What the engine remembers of the directory between two captures.

A tree of DirState mirrors the directories. It holds, for each file, the entry of the last
capture and the stat that vouches for it, so that an unchanged file costs one stat, or nothing
where the directory is watched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field, replace

from kernel_runtime.engines.workspace.filesystems import Trust, granularity_ns
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.tree import Pages
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import Digest

Key = tuple[int, int, int, int, int, int]
"""dev, ino, size, mtime_ns, ctime_ns, mode of a stat."""

NO_KEY: Key = (0, 0, 0, 0, 0, 0)
"""Equal to no file's key: for what was not read consistently."""


def key_of(found: os.stat_result) -> Key:
    """What must be the same for a file to be taken for unchanged."""
    return (
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
        found.st_mode,
    )  # fmt: skip


@dataclass(eq=False)
class Known:
    """One file, symlink or fifo as captured last.

    links: st_nlink. trusted: an equal key proves equal content. seen_ns: monotonic time at
    which this key was seen first.
    """

    __slots__ = ("entry", "key", "links", "seen_ns", "trusted")
    entry: Entry
    key: Key
    links: int
    trusted: bool
    seen_ns: int

    @property
    def changed_ns(self) -> int:
        """When the file, its name or its metadata were changed last."""
        return self.key[4]


@dataclass(eq=False)
class DirState:
    """One directory as captured last.

    entry: its metadata; name empty for a root. tree: its manifest, None while it has to be
    written anew; changed: names that differ since, None: any. notes: names that are not held,
    or not fully: (reason, absent). excluded: names that the rules leave out.
    """

    name: bytes
    parent: DirState | None
    entry: Entry
    key: Key
    files: dict[bytes, Known] = field(default_factory=dict)
    dirs: dict[bytes, DirState] = field(default_factory=dict)
    notes: dict[bytes, tuple[str, bool]] = field(default_factory=dict)
    excluded: set[bytes] = field(default_factory=set)
    tree: Digest | None = None
    pages: Pages = field(default_factory=dict)
    changed: set[bytes] | None = None
    total_files: int = 0
    total_dirs: int = 0
    total_bytes: int = 0
    total_notes: int = 0
    total_excluded: int = 0
    detached: bool = False

    def path(self) -> tuple[bytes, ...]:
        """Names from the root down to this directory; empty for the root itself."""
        names: list[bytes] = []
        state: DirState = self
        while state.parent is not None:
            names.append(state.name)
            state = state.parent
        return tuple(reversed(names))

    def touch(self, name: bytes) -> None:
        """Note that the entry called name changed: this manifest and those above are stale."""
        if self.changed is not None:
            self.changed.add(name)
        state, child = self, name
        while state.tree is not None or state is self:
            state.tree = None
            if state.parent is None:
                return
            child, state = state.name, state.parent
            if state.changed is not None:
                state.changed.add(child)

    def names(self) -> Iterator[bytes]:
        """All names that are in the manifest."""
        yield from self.files
        yield from self.dirs

    def child(self, name: bytes) -> Entry:
        """The entry for a name of the manifest; for a directory with its tree, once written."""
        known = self.files.get(name)
        if known is not None:
            return known.entry
        below = self.dirs[name]
        return replace(below.entry, tree=below.tree or "")

    def forget(self, name: bytes) -> Known | DirState | None:
        """Remove a name, whatever it was; returns what the manifest had."""
        self.notes.pop(name, None)
        self.excluded.discard(name)
        gone: Known | DirState | None = self.files.pop(name, None)
        below = self.dirs.pop(name, None)
        if below is not None:
            below.detached = True
            gone = below
        return gone

    def walk(self) -> Iterator[DirState]:
        """This directory and all below, each before what is in it."""
        pending = [self]
        while pending:
            state = pending.pop()
            yield state
            pending.extend(state.dirs.values())


def vouches(trust: Trust, ctime_ns: int, seen_ns: int, wall_ns: int, mono_ns: int) -> bool:
    """Whether a stat taken when the reading began can prove, later, that nothing changed.

    A write after the reading must give another ctime. That holds if the ctime is older than
    the clock's granularity at the moment of reading (git calls the others "racily clean"), or,
    without comparing clocks, if the same stat was first seen that long before the reading.
    wall_ns and mono_ns: time.time_ns() and time.monotonic_ns() when the reading began.
    """
    if not trust.stat:
        return False
    step = granularity_ns(trust, ctime_ns)
    if trust.same_clock and ctime_ns < wall_ns - step:
        return True
    return mono_ns - seen_ns >= step
