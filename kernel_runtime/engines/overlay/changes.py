"""What a layer says, and what differs between two stacks.

Only paths that some layer touches which the two do not share are looked at, so the price follows
from what was changed and not from the size of the environment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.paths import join, open_regular
from kernel_runtime.engines.overlay.stack import Found, Layered, Stack

ChangeKind = Literal["created", "deleted", "changed", "metadata"]

MOST: Final = 10_000
"""Changes that are listed unless more are asked for."""

COMPARED_BYTES: Final = 256 << 20
"""Content that one comparison reads at most, on either side."""

_BLOCK: Final = 1 << 20


class Touched(NamedTuple):
    """One entry of a layer. opaque: a directory that shows nothing of the layers below."""

    path: bytes
    stat: os.stat_result
    deleted: bool
    opaque: bool


class Summary(NamedTuple):
    """What a layer holds: paths (of files and directories), bytes on the disk with each inode
    counted once, deleted names."""

    paths: int
    bytes: int
    deleted: int


class Change(NamedTuple):
    """One difference. Sizes are in bytes, of regular files only.

    "changed" is content, type or a symlink's target; "metadata" mode, owner, times, extended
    attributes. is_directory: what it is now, or was if it is deleted.
    """

    path: bytes
    kind: ChangeKind
    size_before: int | None
    size_after: int | None
    is_directory: bool


class Changes(list[Change]):
    """In the order of a walk. complete: False if there are more, or some could not be looked at."""

    complete: bool = True


def touched(layer: Path, markers: Markers) -> Iterator[Touched]:
    """What a layer says, parents first; the root itself is left out. Raises OSError.

    What lies in a directory that this user may not look into (chmod -R 000) is left out too.
    """
    with Stack([layer], None, markers) as alone:
        top = alone.root()
        todo = [] if top is None else [(b"", top.real)]
        while todo:
            path, real = todo.pop()
            real = alone.short(real)
            below: list[tuple[bytes, bytes]] = []
            for name, found in _looked_into(real):
                at, where = join(path, name), real + b"/" + name
                if stat.S_ISDIR(found.st_mode):
                    yield Touched(at, found, False, is_opaque(where, markers))
                    below.append((at, where))
                else:
                    yield Touched(at, found, markers.is_deletion(where, found), False)
            todo.extend(reversed(below))


def _looked_into(directory: bytes) -> list[tuple[bytes, os.stat_result]]:
    try:
        names = sorted(os.listdir(directory))
        return [(name, os.lstat(directory + b"/" + name)) for name in names]
    except PermissionError:
        return []


def is_opaque(directory: bytes, markers: Markers) -> bool:
    """Whether it hides what lies below; one that this user may not look into shows nothing."""
    try:
        return markers.is_opaque(directory)
    except PermissionError:
        return True


def summary(layer: Path, markers: Markers) -> Summary:
    """Count a layer. Raises OSError."""
    tally = Tally()
    for entry in touched(layer, markers):
        tally.add(entry)
    return tally.summary


class Tally:
    """Counts entries of one layer."""

    def __init__(self) -> None:
        self._paths = self._bytes = self._deleted = 0
        self._seen: set[int] = set()

    def add(self, entry: Touched) -> None:
        """Count one entry."""
        if entry.deleted:
            self._deleted += 1
            return
        self._paths += 1
        found = entry.stat
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._seen:
                return
            self._seen.add(found.st_ino)
        self._bytes += found.st_blocks * 512

    @property
    def summary(self) -> Summary:
        """What was counted."""
        return Summary(self._paths, self._bytes, self._deleted)


def changes(
    before: Stack, after: Stack, most: int = MOST, compared_bytes: int = COMPARED_BYTES
) -> Changes:
    """What differs between two stacks over the same base, at most so many.

    A path is the same if it is the same inode or reads the same in every respect: type, content,
    mode, owner, times, extended attributes. Files of one size are read and compared; once that
    has cost compared_bytes, equal times count as equal content. A directory is a change of its own
    if it was created, deleted, or has another mode, owner or attributes. Raises OSError.
    """
    found = Changes()
    walk = _Comparison(before, after, compared_bytes)
    for change in walk.run():
        if len(found) == most:
            found.complete = False
            return found
        found.append(change)
    found.complete = not walk.skipped
    return found


def differing_layers(before: Stack, after: Stack) -> tuple[Path, ...]:
    """The layers that are in one of the two only (or stand in another order). Raises ValueError
    if the bases are not the same directory."""
    if before.base != after.base or before.hidden != after.hidden:
        raise ValueError("two stacks can be compared only over the same base")
    shared = 0
    ours, theirs = before.layers, after.layers
    while shared < min(len(ours), len(theirs)) and ours[-1 - shared] == theirs[-1 - shared]:
        shared += 1
    return tuple(dict.fromkeys((*ours[: len(ours) - shared], *theirs[: len(theirs) - shared])))


class _Frame(NamedTuple):
    """A directory in both. told: its directories in the layers that differ; None: any of its
    names may differ."""

    path: bytes
    before: tuple[Layered, ...]
    after: tuple[Layered, ...]
    told: tuple[bytes, ...] | None


class _Comparison:
    def __init__(self, before: Stack, after: Stack, compared_bytes: int) -> None:
        self._before, self._after, self._left = before, after, compared_bytes
        self.skipped = False
        """Whether a directory could not be looked into."""

    def run(self) -> Iterator[Change]:
        layers = differing_layers(self._before, self._after)
        old, new = self._before.root(), self._after.root()
        if not layers or old is None or new is None:
            if new is not None and old is None:
                yield from self._gone_or_new(self._after, b"", new, "created")
            if old is not None and new is None:
                yield from self._gone_or_new(self._before, b"", old, "deleted")
            return
        if not self._same_metadata(old, new):
            yield Change(b"", "metadata", None, None, True)
        told = tuple(os.fsencode(layer) for layer in layers)
        todo = [self._looked_into(_Frame(b"", old.merged, new.merged, told))]
        while todo:
            for item in todo[-1]:
                if isinstance(item, Change):
                    yield item
                else:
                    todo.append(self._looked_into(item))
                    break
            else:
                todo.pop()

    def _looked_into(self, frame: _Frame) -> Iterator[Change | _Frame]:
        if self._identity(self._before, frame.before) == self._identity(self._after, frame.after):
            return
        try:
            pairs = list(self._everything(frame) if frame.told is None else self._told(frame))
        except PermissionError:
            self.skipped = True
            return
        for path, old, new, told in pairs:
            yield from self._compared(path, old, new)
            if old is not None and new is not None and old.is_directory and new.is_directory:
                yield _Frame(path, old.merged, new.merged, told)

    @staticmethod
    def _identity(stack: Stack, merged: Sequence[Layered]) -> list[tuple[bytes, bool]]:
        return [(layered.real, layered.level == len(stack.layers)) for layered in merged]

    def _everything(
        self, frame: _Frame
    ) -> Iterator[tuple[bytes, Found | None, Found | None, None]]:
        old = self._before.entries(frame.before, frame.path)
        new = self._after.entries(frame.after, frame.path)
        for name in sorted(old.keys() | new.keys()):
            yield join(frame.path, name), old.get(name), new.get(name), None

    def _told(
        self, frame: _Frame
    ) -> Iterator[tuple[bytes, Found | None, Found | None, tuple[bytes, ...] | None]]:
        """The names of which the layers that differ say something."""
        assert frame.told is not None
        holders: dict[bytes, list[bytes]] = {}
        for directory in frame.told:
            short = self._after.short(directory)
            for name in os.listdir(short):
                holders.setdefault(name, []).append(short + b"/" + name)
        for name in sorted(holders):
            path = join(frame.path, name)
            old = self._before.child(frame.before, path, name)
            new = self._after.child(frame.after, path, name)
            told: tuple[bytes, ...] | None = None
            if old is not None and new is not None and old.is_directory and new.is_directory:
                told = self._plain(holders[name])
            yield path, old, new, told

    def _plain(self, places: Sequence[bytes]) -> tuple[bytes, ...] | None:
        """These, if all are directories that add to what is below them."""
        for real in places:
            try:
                if not stat.S_ISDIR(os.lstat(real).st_mode) or self._after.markers.is_opaque(real):
                    return None
            except PermissionError:
                return None
        return tuple(places)

    def _compared(self, path: bytes, old: Found | None, new: Found | None) -> Iterator[Change]:
        if old is None:
            if new is not None:
                yield from self._gone_or_new(self._after, path, new, "created")
            return
        if new is None:
            yield from self._gone_or_new(self._before, path, old, "deleted")
            return
        kind = self._difference(old, new)
        if kind is not None:
            yield Change(path, kind, size(old), size(new), new.is_directory)
        if old.is_directory and not new.is_directory:
            yield from self._each_below(self._before, path, old, "deleted")
        elif new.is_directory and not old.is_directory:
            yield from self._each_below(self._after, path, new, "created")

    def _gone_or_new(
        self, stack: Stack, path: bytes, found: Found, kind: ChangeKind
    ) -> Iterator[Change]:
        yield _one_sided(path, found, kind)
        yield from self._each_below(stack, path, found, kind)

    def _each_below(
        self, stack: Stack, path: bytes, found: Found, kind: ChangeKind
    ) -> Iterator[Change]:
        try:
            for at, child in stack.below(path, found):
                yield _one_sided(at, child, kind)
        except PermissionError:
            self.skipped = True

    def _difference(self, old: Found, new: Found) -> ChangeKind | None:
        left, right = old.stat, new.stat
        if stat.S_IFMT(left.st_mode) != stat.S_IFMT(right.st_mode):
            return "changed"
        if (left.st_ino, left.st_dev) == (right.st_ino, right.st_dev):
            return None
        if stat.S_ISDIR(left.st_mode):
            return None if self._same_metadata(old, new) else "metadata"
        if not self._same_content(old, new):
            return "changed"
        same = left.st_mtime_ns == right.st_mtime_ns and self._same_metadata(old, new)
        return None if same else "metadata"

    def _same_metadata(self, old: Found, new: Found) -> bool:
        left, right = old.stat, new.stat
        if (left.st_mode, left.st_uid, left.st_gid) != (right.st_mode, right.st_uid, right.st_gid):
            return False
        try:
            return self._before.attributes(old) == self._after.attributes(new)
        except PermissionError:
            return True

    def _same_content(self, old: Found, new: Found) -> bool:
        left, right = old.stat, new.stat
        if stat.S_ISLNK(left.st_mode):
            return os.readlink(old.real) == os.readlink(new.real)
        if not stat.S_ISREG(left.st_mode):
            return left.st_rdev == right.st_rdev
        if left.st_size != right.st_size:
            return False
        if left.st_size <= self._left:
            self._left -= left.st_size
            try:
                return same_bytes(old.real, new.real)
            except PermissionError:
                pass
        return left.st_mtime_ns == right.st_mtime_ns


def size(found: Found) -> int | None:
    """Bytes of a regular file, None for anything else."""
    return found.stat.st_size if stat.S_ISREG(found.stat.st_mode) else None


def _one_sided(path: bytes, found: Found, kind: ChangeKind) -> Change:
    if kind == "created":
        return Change(path, kind, None, size(found), found.is_directory)
    return Change(path, kind, size(found), None, found.is_directory)


def same_bytes(left: bytes, right: bytes) -> bool:
    """Whether two files have the same content. Raises OSError."""
    with (
        open(open_regular(left), "rb", buffering=0) as ours,
        open(open_regular(right), "rb", buffering=0) as theirs,
    ):
        # Unbuffered reads of regular files are short at their end only.
        while block := ours.read(_BLOCK):
            if block != theirs.read(_BLOCK):
                return False
        return not theirs.read(1)
