"""Files that are being written while their layer is frozen.

The inode moves on into the new upper, so that whoever holds it writes what everybody sees; the
layer keeps a copy. Which file it is, is told by its inode: a name says nothing once the file was
opened in an older mount and renamed since, or has several names.

Runs in the sandbox's init, like mounts.py, while all processes are stopped.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Protocol

from kernel_runtime.engines.overlay import faults
from kernel_runtime.engines.overlay.copying import copy_file
from kernel_runtime.engines.overlay.held import Written
from kernel_runtime.engines.overlay.markers import USER, Markers
from kernel_runtime.later import dataclass


class _Root(Protocol):
    path: str
    live: dict[tuple[int, bytes], int]


@dataclass
class Live:
    """Which files of an upper are being written."""

    names: dict[int, list[bytes]] = field(default_factory=dict)
    """For each inode its names in the upper."""
    known: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """For each mount and name there the inode, 0 if that is in no layer any more."""


def find_live(root: _Root, written: Iterable[Written], upper: bytes) -> Live:
    """Find what is held in an upper. Raises OSError."""
    live = Live()
    unnamed: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
    searched: set[int] = set()
    for one in written:
        keys = [(one.mount, one.path)]
        if not one.mount:  # in whichever mount; to hand over too much is only a copy
            keys += [key for key in root.live if key[1] == one.path]
        for key in keys:
            inode = root.live.get(key)
            if inode is None and one.deleted:
                unnamed.setdefault(one.identity, []).append(key)
                continue
            found = _regular(upper + b"/" + one.path)
            if inode is None:
                if found is None:
                    continue  # it is not in this layer
                inode = found.st_ino
            if inode:
                live.known[key] = inode
            if found is not None and found.st_ino == inode and found.st_nlink == 1:
                live.names[inode] = [one.path]
            elif inode:
                searched.add(inode)
    if searched or unnamed:
        _search(root, upper, live, searched, unnamed)
    return live


def _search(
    root: _Root,
    upper: bytes,
    live: Live,
    searched: set[int],
    unnamed: dict[tuple[int, int], list[tuple[int, bytes]]],
) -> None:
    for inode in searched:
        live.names.pop(inode, None)
    for path, inode in _regular_files(upper):
        if unnamed:
            with contextlib.suppress(OSError):
                seen = os.lstat(os.fsencode(root.path) + b"/" + path)
                keys = unnamed.get((seen.st_dev, seen.st_ino))
                if keys is not None:
                    searched.add(inode)
                    live.known.update(dict.fromkeys(keys, inode))
        if inode in searched:
            live.names.setdefault(inode, []).append(path)
    for key, inode in live.known.items():
        if inode not in live.names:
            live.known[key] = 0


def _regular(path: bytes) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _regular_files(top: bytes) -> Iterator[tuple[bytes, int]]:
    todo = [b""]
    while todo:
        directory = todo.pop()
        with os.scandir(top + b"/" + directory) as entries:
            for entry in entries:
                path = directory + b"/" + entry.name if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path)
                elif entry.is_file(follow_symlinks=False):
                    yield path, entry.inode()


class Handing:
    """Moves files from a layer that is being frozen to the new upper. At any moment both are whole.

    upper: the new upper's directory, ``files`` in it is what will be mounted.
    """

    def __init__(self, frozen: str, upper: str, markers: Markers) -> None:
        self.frozen = os.fsencode(frozen)
        self._upper = os.fsencode(upper) + b"/files"
        self._spare = os.fsencode(upper) + b"/copy-"
        self._markers = markers
        self.moved: list[bytes] = []
        self._times: dict[bytes, os.stat_result] = {}

    def over(self, files: Iterable[Sequence[bytes]]) -> None:
        """Hand these over, each with all of its names. Raises OSError; then `back` undoes it."""
        given = [sorted(names) for names in files]
        for number, names in enumerate(given):
            copy_file(self.frozen + b"/" + names[0], self._copy(number), self._markers)
        faults.point("init: copied")
        made = self._link([name for names in given for name in names])
        for number, names in enumerate(given):
            for name in names:
                self._replace(name, self._copy(number), last=name == names[-1])
                faults.point("init: replaced")
        self._put_times_back()
        for directory in reversed(made):
            copy_attributes(
                self.frozen + b"/" + directory, self._upper + b"/" + directory, self._markers
            )

    def _copy(self, number: int) -> bytes:
        return self._spare + str(number).encode()

    def _link(self, names: Sequence[bytes]) -> list[bytes]:
        """Give files their names in the upper too; return the directories that were made there."""
        made = [b""]
        for name in names:
            parts = name.split(b"/")
            for depth in range(1, len(parts)):
                directory = b"/".join(parts[:depth])
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._upper + b"/" + directory, 0o700)
                    made.append(directory)
            source, target = self.frozen + b"/" + name, self._upper + b"/" + name
            os.link(source, target, follow_symlinks=False)
        return made

    def _replace(self, name: bytes, copy: bytes, *, last: bool) -> None:
        directory = self.frozen + b"/" + name.rpartition(b"/")[0]
        self._times.setdefault(directory, os.lstat(directory))
        one = copy
        if not last:
            one = copy + b"-"
            os.link(copy, one, follow_symlinks=False)
        os.rename(one, self.frozen + b"/" + name)
        self.moved.append(name)

    def _put_times_back(self) -> None:
        for directory, before in self._times.items():
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def back(self) -> None:
        """Undo it. What is left in the new upper is of no use."""
        for name in self.moved:
            os.rename(self._upper + b"/" + name, self.frozen + b"/" + name)
        self._put_times_back()
        self.moved = []


def copy_attributes(
    source: bytes, target: bytes, markers: Markers = USER, *, read_only: bool = False
) -> None:
    """Mode, owner, attributes and times of a directory, as far as this user may set them.

    read_only: it is another user's on the host, and must not become writable by being ours.
    """
    st = os.stat(source)
    mode = stat.S_IMODE(st.st_mode)
    with contextlib.suppress(OSError):
        os.chown(target, st.st_uid, st.st_gid)
    owned = os.stat(target).st_uid == st.st_uid
    os.chmod(target, mode & ~0o222 if read_only and not owned else mode)
    with contextlib.suppress(OSError):
        for name, value in markers.raw_attributes(source).items():
            with contextlib.suppress(OSError):
                os.setxattr(target, name, value)
    os.utime(target, ns=(st.st_atime_ns, st.st_mtime_ns))
