"""inotify(7) on every directory, so that only what changed is looked at again.

Race-free by order: a directory is watched before it is listed, and notices are read before
anything is looked at. What changes after that gives a notice for the next capture, at worst a
superfluous one. A file with several hard links is watched itself, since a write through
another of its names is not reported to its directory. A second name is reported where it is
made, and the caller then looks at the first: its directory is not told (inotify(7)).

Not seen: a second name made where nothing is watched, and what is done through it; writes
through a shared mapping while it lasts (the caller names those files), and
changes made by other machines; filesystems where that can happen are not watched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kernel_runtime.engines.overlay.plan import read_mounts
from kernel_runtime.engines.workspace import linux
from kernel_runtime.engines.workspace.filesystems import trust_of
from kernel_runtime.engines.workspace.state import DirState

# linux/inotify.h
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _Q_OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
_DIRECTORY_MASK: Final = (
    _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
    | _DELETE_SELF | _MOVE_SELF | _ONLYDIR | _EXCL_UNLINK
)  # fmt: skip
_FILE_MASK: Final = _MODIFY | _ATTRIB | _CLOSE_WRITE | _DONT_FOLLOW
_EVENT: Final = struct.Struct("=iIII")
_MOUNTS: Final = "/proc/self/mountinfo"
_LIMIT: Final = Path("/proc/sys/fs/inotify/max_user_watches")
_SHARE: Final = 2
"""Of the user's watches we take one part in so many: editors need some too."""


Noticed = dict[DirState, set[bytes]]
"""Names in directories."""


class Overflow(Exception):
    """Notices were lost, or a filesystem was mounted or unmounted: everything must be scanned."""


class MountsChanged(Overflow):
    """A filesystem was mounted or unmounted below a root. No notice was lost: ``noticed``."""

    def __init__(self, noticed: Noticed) -> None:
        super().__init__()
        self.noticed = noticed


class WatchRefused(Exception):
    """Watching is not possible here, for the reason given; scanning is."""


class Watch:
    """All watches of one engine. Raises WatchRefused where they cannot be had."""

    def __init__(self, roots: Iterable[Path] = ()) -> None:
        """roots: below which mounts matter; what is mounted over a root itself, its users see."""
        try:
            self._budget = int(_LIMIT.read_text("ascii")) // _SHARE
            self._fd = linux.inotify_init()
        except (OSError, ValueError) as cause:
            raise WatchRefused(f"inotify is not available: {cause}") from cause
        self._directories: dict[int, DirState] = {}
        self._files: dict[int, set[tuple[DirState, bytes]]] = {}
        self._numbers: dict[DirState, int] = {}
        self._devices: dict[int, bool] = {}
        self.unwatched: set[DirState] = set()
        """Directories that may not be watched (mode 000): to be listed at each capture."""
        # Mounting over a directory gives no notice there, but this descriptor tells.
        self._mounts = os.open(_MOUNTS, os.O_RDONLY | linux.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._mounts, select.POLLERR | select.POLLPRI)
        self._poll.poll(0)
        self._below = tuple(os.path.join(os.path.realpath(root), "") for root in roots)
        self._mounted = self._mounts_below()

    @classmethod
    def on(cls, fd: int, roots: Iterable[Path] = ()) -> Watch:
        """A watch for the filesystem of an open directory, of one of these roots."""
        trust = trust_of(fd)
        if not trust.notices:
            raise WatchRefused(f"changes on this filesystem ({trust.name}) are not all reported")
        return cls(roots)

    @property
    def count(self) -> int:
        """Watches in use."""
        return len(self._directories) + len(self._files)

    def watch_directory(self, state: DirState, fd: int) -> None:
        """Report changes in a directory from now on. Raises WatchRefused."""
        device = os.fstat(fd).st_dev
        reported = self._devices.get(device)
        if reported is None:
            reported = self._devices[device] = trust_of(fd).notices
        if not reported:
            raise WatchRefused("a filesystem is mounted inside whose changes are not all reported")
        self.unwatched.discard(state)
        try:
            number = self._add(f"/proc/self/fd/{fd}".encode("ascii"), _DIRECTORY_MASK)
        except PermissionError:
            self.unwatched.add(state)
            return
        self._directories[number] = state
        self._numbers[state] = number

    def watch_file(self, state: DirState, fd: int, name: bytes) -> None:
        """Report changes of a file, through whatever name they are made. Raises WatchRefused."""
        path = f"/proc/self/fd/{fd}/".encode("ascii") + name
        try:
            number = self._add(path, _FILE_MASK)
        except FileNotFoundError:
            return
        except PermissionError:
            self.unwatched.add(state)
            return
        self._files.setdefault(number, set()).add((state, name))

    def watches(self, state: DirState) -> bool:
        """Whether changes in a directory are reported. A new one may have an old inode number,
        but not the watch, which the kernel removed with the old directory."""
        return state in self._numbers

    def forget(self, state: DirState) -> None:
        """Stop reporting a directory that is gone; its inode may be known by another name."""
        self.unwatched.discard(state)
        number = self._numbers.pop(state, None)
        if number is not None and self._directories.get(number) is state:
            del self._directories[number]
            with contextlib.suppress(OSError):  # the kernel removes it with the directory
                linux.inotify_rm_watch(self._fd, number)

    def drain(self) -> Noticed:
        """What was reported since the last call. Raises Overflow, MountsChanged."""
        changed: Noticed = {}
        mounted, overflow = bool(self._poll.poll(0)) and self._mounts_changed(), False
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                name = data[offset : offset + length].rstrip(b"\0")
                offset += length
                if mask & (_Q_OVERFLOW | _UNMOUNT):
                    overflow = True
                self._note(number, mask, name, changed)
        if overflow:
            raise Overflow
        if mounted:
            raise MountsChanged(changed)
        return changed

    def _mounts_changed(self) -> bool:
        """Whether any matters here: other programs mount elsewhere all the time."""
        before, self._mounted = self._mounted, self._mounts_below()
        return before != self._mounted

    def _mounts_below(self) -> list[str]:
        """Their whole lines: with ids, so that a filesystem in another's place is another one."""
        text = Path(_MOUNTS).read_text("utf-8", "surrogateescape")
        lines = zip(text.splitlines(), read_mounts(text))
        return [line for line, mount in lines if mount.path.startswith(self._below)]

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)
        os.close(self._mounts)

    def _note(self, number: int, mask: int, name: bytes, changed: Noticed) -> None:
        state = self._directories.get(number)
        if state is not None:
            names = changed.setdefault(state, set())
            if name:
                names.add(name)
        for owner, known in self._files.get(number, ()):
            changed.setdefault(owner, set()).add(known)
        if mask & _IGNORED:
            self._files.pop(number, None)
            if state is not None:
                self._directories.pop(number, None)
                self._numbers.pop(state, None)

    def _add(self, path: bytes, mask: int) -> int:
        if self.count >= self._budget:
            raise WatchRefused(f"more than {self._budget} directories: half of the user's watches")
        try:
            return linux.inotify_add_watch(self._fd, path, mask)
        except OSError as cause:
            if cause.errno == errno.ENOSPC:
                raise WatchRefused("the user's inotify watches are used up") from cause
            raise
