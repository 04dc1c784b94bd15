"""Bring the remembered tree up to date with the directory, reading what changed.

Every step is relative to an open directory and follows no symlink. A path that cannot be read
becomes a note in its directory and nothing more: one bad path never ends a capture. Only a
store that cannot be written does.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Final, Protocol

from kernel_runtime.engines.workspace import faults
from kernel_runtime.engines.workspace.access import Access
from kernel_runtime.engines.workspace.filesystems import is_kernel_interface
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.reading import TOO_LARGE, FileReader, Unstable, link_group
from kernel_runtime.engines.workspace.rules import Rules
from kernel_runtime.engines.workspace.state import (
    NO_KEY,
    DirState,
    Key,
    Known,
    key_of,
    vouches,
)
from kernel_runtime.engines.workspace.tree import make_entry
from kernel_runtime.later import dataclass

MAX_DEPTH: Final = 256
"""Directories nested deeper are left out: each level costs an open descriptor."""

ANOTHER_ROOT: Final = "captured as a directory of its own"
OWN_DATA: Final = "holds the checkpoints themselves: never captured"
HELD_BY_LINK: Final = f"{TOO_LARGE}: held against deletion, not against writing in place"

_GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_TYPES: Final = {stat.S_IFSOCK: "socket", stat.S_IFBLK: "block device", stat.S_IFCHR: "device"}


class Watcher(Protocol):
    """Told of directories before they are listed, so that later changes are noticed."""

    def watch_directory(self, state: DirState, fd: int) -> None:
        """Called before a directory is listed."""

    def watch_file(self, state: DirState, fd: int, name: bytes) -> None:
        """Called before a file with several hard links is looked at."""

    def watches(self, state: DirState) -> bool:
        """Whether changes in a known directory would have been reported."""

    def forget(self, state: DirState) -> None:
        """Called for each directory that is no longer there."""


@dataclass
class Scanner:
    """The means of one capture. Its methods raise BlobError, if the store cannot be written,
    WatchRefused, if the watcher gave up, and no other error.

    inodes: what is known of files by inode number. dirty_files: (st_dev, st_ino) of files to
    read again whatever their stat says. changed: how many paths were found to differ.
    gone: directories that are no longer there. relinked: files with several hard links that were
    found new or changed, by (st_dev, st_ino): their key and st_nlink. Their other names were not
    necessarily looked at; `stale_names` tells which have to be.
    """

    reader: FileReader
    access: Access
    rules: Rules
    inodes: dict[int, Known]
    dirty_files: Collection[tuple[int, int]] = ()
    watcher: Watcher | None = None
    changed: int = 0
    gone: list[DirState] = field(default_factory=list)
    relinked: dict[tuple[int, int], tuple[Key, int]] = field(default_factory=dict)

    def scan(self, state: DirState, fd: int, depth: int = 0) -> None:
        """List a directory and bring it, and all below, up to date."""
        faults.point("scan")
        if self.watcher is not None:
            self.watcher.watch_directory(state, fd)
        seen: set[bytes] = set()
        files = state.files
        with os.scandir(fd) as listing:
            for item in listing:
                name = os.fsencode(item.name)
                seen.add(name)
                known = files.get(name)
                if known is not None and known.trusted and known.links == 1:
                    # The path that 50,000 unchanged files take: one stat, one comparison.
                    try:
                        key = key_of(item.stat(follow_symlinks=False))
                    except OSError:
                        key = NO_KEY
                    if key == known.key and key[:2] not in self.dirty_files:
                        continue
                self.visit(state, fd, name, depth, descend=True)
        for name in [*state.files, *state.dirs, *state.notes, *state.excluded]:
            if name not in seen:
                self._drop(state, name)
        self.refresh(state, fd)

    def visit(
        self, state: DirState, fd: int, name: bytes, depth: int, *, descend: bool = False
    ) -> None:
        """Bring one name up to date. descend: also look into a directory that is known."""
        if self.rules.excludes(b"/".join((*state.path(), name))):
            self._exclude(state, name, fd)
            return
        try:
            found = self.access.lstat(fd, name)
        except OSError as cause:
            if cause.errno in _GONE:
                self._drop(state, name)
            else:
                self._omit(state, name, cause.strerror or "cannot be looked at")
            return
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            self._directory(state, fd, name, found, depth, descend=descend)
        elif kind == stat.S_IFREG:
            self._file(state, fd, name, found)
        elif kind in (stat.S_IFLNK, stat.S_IFIFO):
            self._small(state, fd, name, found)
        else:
            self._omit(state, name, f"{_TYPES.get(kind, 'special file')}: not captured")

    def refresh(self, state: DirState, fd: int) -> None:
        """Bring a directory's own metadata up to date."""
        found = os.fstat(fd)
        key = key_of(found)
        if key == state.key:
            return
        entry = self._entry_of_directory(state.name, fd, found)
        if entry != state.entry:
            state.entry = entry
            self.changed += 1
            if state.parent is not None:
                state.parent.touch(state.name)
        state.key = key

    def new_directory(self, name: bytes, parent: DirState | None, fd: int) -> DirState:
        """A state for a directory that was not known; nothing in it has been looked at."""
        entry = make_entry(name, "d", 0, 0, 0, 0)
        return DirState(name, parent, entry, NO_KEY)

    # -- kinds --------------------------------------------------------------------------------

    def _directory(
        self,
        state: DirState,
        fd: int,
        name: bytes,
        found: os.stat_result,
        depth: int,
        *,
        descend: bool,
    ) -> None:
        apart = self.rules.identities.get((found.st_dev, found.st_ino))
        if apart is not None:
            self._omit(state, name, apart)
            return
        if depth >= MAX_DEPTH:
            self._omit(state, name, f"nested deeper than {MAX_DEPTH} directories")
            return
        try:
            below = self.access.open_dir(fd, name)
        except OSError as cause:
            if cause.errno in _GONE:
                self._drop(state, name)
            else:
                self._omit(state, name, f"directory cannot be read: {cause.strerror}")
            return
        try:
            known = state.dirs.get(name)
            opened = os.fstat(below)
            if opened.st_dev != os.fstat(fd).st_dev and is_kernel_interface(below):
                self._omit(state, name, "shows the kernel's state and holds no data")
                return
            same = known is not None and known.key[:2] == (opened.st_dev, opened.st_ino)
            if known is not None and same:
                if descend or self.watcher is None or not self.watcher.watches(known):
                    self.scan(known, below, depth + 1)
                else:
                    self.refresh(known, below)
                return
            fresh = self.new_directory(name, state, below)
            self.scan(fresh, below, depth + 1)
            self._put(state, name, fresh)
        finally:
            os.close(below)

    def _file(self, state: DirState, fd: int, name: bytes, found: os.stat_result) -> None:
        known = state.files.get(name) or self.inodes.get(found.st_ino)
        key = key_of(found)
        if found.st_nlink > 1:
            self._shared(state, fd, name, found)
        if (
            known is not None
            and known.trusted
            and known.key == key
            # A link made since may have been written through in the same tick of the clock.
            and known.links == found.st_nlink
            and (found.st_dev, found.st_ino) not in self.dirty_files
        ):
            if state.files.get(name) is not known:
                self._set(state, name, self._again(known, name, found))
            return
        try:
            self._set(state, name, self.reader.read(fd, name, found, known))
        except FileNotFoundError:
            self._drop(state, name)
        except Unstable as torn:
            self._keep_older(state, name, torn.entry, found)
        except OSError as cause:
            self._omit(state, name, f"cannot be read: {cause.strerror}")

    def _small(self, state: DirState, fd: int, name: bytes, found: os.stat_result) -> None:
        key = key_of(found)
        known = state.files.get(name)
        if found.st_nlink > 1:
            self._shared(state, fd, name, found)
        same = known is not None and (known.key, known.links) == (key, found.st_nlink)
        if known is not None and known.trusted and same:
            return
        now, mono = time.time_ns(), time.monotonic_ns()
        is_link = stat.S_ISLNK(found.st_mode)
        try:
            target = self.access.readlink(fd, name) if is_link else b""
        except OSError as cause:
            if cause.errno in (*_GONE, errno.EINVAL):
                self._drop(state, name)
            else:
                self._omit(state, name, cause.strerror or "cannot be read")
            return
        entry = make_entry(
            name, "l" if is_link else "p", stat.S_IMODE(found.st_mode), found.st_uid,
            found.st_gid, found.st_mtime_ns, target=target,
        )  # fmt: skip
        seen = known.seen_ns if known is not None and known.key == key else mono
        trusted = vouches(self.reader.trust(fd, found.st_dev), found.st_ctime_ns, seen, now, mono)
        self._set(state, name, Known(entry, key, found.st_nlink, trusted, seen))

    def _shared(self, state: DirState, fd: int, name: bytes, found: os.stat_result) -> None:
        """A name of a file with several: have it watched, and note what its other names miss."""
        if self.watcher is not None:
            self.watcher.watch_file(state, fd, name)
        known, now = state.files.get(name), (key_of(found), found.st_nlink)
        if known is None or (known.key, known.links) != now:
            self.relinked[found.st_dev, found.st_ino] = now

    def _keep_older(self, state: DirState, name: bytes, torn: Entry, found: os.stat_result) -> None:
        """A file that changes all the time: keep the last consistent reading, and say so."""
        known = state.files.get(name)
        if known is not None and known.entry.kind == "f" and not known.entry.held:
            entry, reason = known.entry, "changed while it was read: an older version is held"
        else:
            entry, reason = torn, "changed while it was read: may mix two versions"
        self._set(state, name, Known(entry, NO_KEY, found.st_nlink, False, 0))
        state.notes[name] = (reason, False)
        state.touch(name)

    def _again(self, known: Known, name: bytes, found: os.stat_result) -> Known:
        """The same inode under another name."""
        old = known.entry
        entry = make_entry(
            name, old.kind, old.mode, old.uid, old.gid, old.mtime_ns, size=old.size,
            chunks=old.chunks, link=link_group(found), held=old.held, xattrs=old.xattrs,
        )  # fmt: skip
        return Known(entry, known.key, found.st_nlink, known.trusted, known.seen_ns)

    def _entry_of_directory(self, name: bytes, fd: int, found: os.stat_result) -> Entry:
        return make_entry(
            name, "d", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid,
            found.st_mtime_ns, xattrs=self.reader.xattrs(name, fd),
        )  # fmt: skip

    # -- the remembered tree ------------------------------------------------------------------

    def _set(self, state: DirState, name: bytes, known: Known) -> None:
        old = state.files.get(name)
        self.inodes[known.key[1]] = known
        if old is not None and old.entry == known.entry:
            state.files[name] = known
            if state.notes.pop(name, None) is not None:
                state.touch(name)
        else:
            self._put(state, name, known)
        refused = self.reader.refused.pop(name, "")
        if known.entry.held == "link":
            state.notes[name] = (HELD_BY_LINK, False)
        elif refused:
            state.notes[name] = (refused, False)

    def _put(self, state: DirState, name: bytes, item: Known | DirState) -> None:
        self._forget(state.forget(name))
        if isinstance(item, DirState):
            state.dirs[name] = item
        else:
            state.files[name] = item
        self.changed += 1
        state.touch(name)

    def _drop(self, state: DirState, name: bytes) -> None:
        noted = name in state.notes or name in state.excluded
        gone = state.forget(name)
        if gone is None and not noted:
            return
        self._forget(gone)
        if isinstance(gone, Known) and self.inodes.get(gone.key[1]) is gone:
            del self.inodes[gone.key[1]]
        self.changed += gone is not None
        state.touch(name)

    def _omit(self, state: DirState, name: bytes, reason: str) -> None:
        if state.notes.get(name) == (reason, True):
            return
        self._forget(state.forget(name))
        state.notes[name] = (reason, True)
        state.touch(name)

    def _exclude(self, state: DirState, name: bytes, fd: int) -> None:
        try:
            # not stat: what is left out may be a mount that does not answer
            os.close(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd))
        except FileNotFoundError:
            self._drop(state, name)
            return
        except OSError:
            pass
        if name not in state.excluded:
            self._forget(state.forget(name))
            state.excluded.add(name)
            state.touch(name)

    def _forget(self, gone: Known | DirState | None) -> None:
        if isinstance(gone, DirState):
            self.gone.append(gone)
            for below in gone.walk():
                below.detached = True
                if self.watcher is not None:
                    self.watcher.forget(below)


def stale_names(
    top: DirState, relinked: Mapping[tuple[int, int], tuple[Key, int]]
) -> dict[DirState, set[bytes]]:
    """Names of these files that still have what was known before they were found changed.

    link(2) is reported where the new name is, and nowhere else, unless the file itself is
    watched (inotify(7)): nothing else tells that the old name is now one of several.
    """
    found: dict[DirState, set[bytes]] = {}
    for state in top.walk() if relinked else ():
        for name, known in state.files.items():
            now = relinked.get(known.key[:2])
            if now is not None and (known.key, known.links) != now:
                found.setdefault(state, set()).add(name)
    return found


def open_below(access: Access, root_fd: int, names: Iterable[bytes]) -> int:
    """A descriptor of the directory below an open root, one component at a time."""
    fd = os.dup(root_fd)
    for name in names:
        try:
            below = access.open_dir(fd, name)
        finally:
            os.close(fd)
        fd = below
    return fd
