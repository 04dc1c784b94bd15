"""Files of the environment onto the host: what the user chose, nothing else.

All is checked before anything is touched. A file is made under another name beside its place and
renamed, so each is the old one or the new one, whole. Nothing is reached through a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kernel_runtime.engines.overlay.changes import same_bytes
from kernel_runtime.engines.overlay.entries import Copier, remove, set_attributes
from kernel_runtime.engines.overlay.errors import ApplyFailed, ApplyRefused
from kernel_runtime.engines.overlay.markers import all_attributes
from kernel_runtime.engines.overlay.paths import parts
from kernel_runtime.engines.overlay.stack import Found, Stack
from kernel_runtime.later import dataclass
from kernel_runtime.store.reflinks import sync_filesystem

Action = Literal["created", "replaced", "deleted", "attributes"]

HOST_CHANGED: Final = "was changed on the host since"
"""How the reason ends for which force is asked."""

_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOUNTINFO: Final = "/proc/self/mountinfo"


class Done(NamedTuple):
    """What was done to a path of the host. note: what could not be kept, "" if all is as it was."""

    path: bytes
    action: Action
    note: str


def copy_out(
    stack: Stack,
    paths: Iterable[bytes],
    host_root: Path,
    *,
    since_ns: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> list[Done]:
    """Make paths of the host's directory what they are in a view; return what was done.

    Paths are relative to the root, as changes() gives them; one that the view does not have is
    deleted on the host, a directory with all that is in it. A directory is made without what is in
    it: name that too. Directories on the way are made as they are in the view. What is the host's
    own in the view, and what is equal already, is left alone. Hard links are not kept.

    since_ns: when the view and the host parted, in nanoseconds since the epoch. What was changed
    on the host after that is not overwritten or deleted unless force says so; None: not looked at.
    dry_run: all is checked, and what would be done is returned.
    Raises ApplyRefused before anything is changed, ApplyFailed half way.
    """
    run = _Run(stack, os.fsencode(os.path.realpath(host_root)), None if force else since_ns)
    try:
        steps = run.planned(sorted(set(paths)))
        return run.foreseen(steps) if dry_run else run.apply(steps)
    finally:
        run.close()


@dataclass
class _Step:
    path: bytes
    wanted: Found | None
    host: os.stat_result | None


@dataclass
class _Run:
    stack: Stack
    top: bytes
    since_ns: int | None
    made: set[bytes] = field(default_factory=set)
    done: list[Done] = field(default_factory=list)
    directories: list[tuple[bytes, Found]] = field(default_factory=list)
    _parent: tuple[bytes, int] | None = None

    # -- looking -----------------------------------------------------------------------------

    def planned(self, paths: list[bytes]) -> list[_Step]:
        problems: list[tuple[bytes, str]] = []
        steps: list[_Step] = []
        mounts = _mount_points()
        for path in paths:
            try:
                step = self._step(path, mounts)
            except _Problem as problem:
                problems.append((path, str(problem)))
            except OSError as error:
                problems.append((path, error.strerror or str(error)))
            else:
                if step is not None:
                    steps.append(step)
                    if step.wanted is not None and step.wanted.is_directory:
                        self.made.add(path)
        if problems:
            raise ApplyRefused(problems)
        return steps

    def _step(self, path: bytes, mounts: set[bytes]) -> _Step | None:
        if not path or not parts(path):
            raise _Problem("the directory itself cannot be replaced")
        for hidden in self.stack.hidden:
            if path == hidden or path.startswith(hidden + b"/"):
                raise _Problem("is not part of the environment")
        wanted = self.stack.lookup(path)
        if wanted is not None and wanted.from_base:
            return None
        host = self._host(path)
        if host is None:
            return None if wanted is None else _Step(path, wanted, None)
        keeps_directory = wanted is not None and wanted.is_directory
        if not (keeps_directory and stat.S_ISDIR(host.st_mode)):
            self._may_go(path, host, wanted, mounts)
        elif self._is_same(path, host, wanted):
            return None
        if wanted is not None and self._is_same(path, host, wanted):
            return None
        return _Step(path, wanted, host)

    def _host(self, path: bytes) -> os.stat_result | None:
        """What the host has; None if nothing, or if its directory is one that will be made."""
        at = b""
        for name in path.split(b"/")[:-1]:
            at = at + b"/" + name if at else name
            try:
                found = os.lstat(self.top + b"/" + at)
            except FileNotFoundError:
                return None
            if not stat.S_ISDIR(found.st_mode):
                if at in self.made:
                    return None
                what = "a symlink" if stat.S_ISLNK(found.st_mode) else "not a directory"
                raise _Problem(f"{os.fsdecode(at)} is {what} on the host")
        try:
            return os.lstat(self.top + b"/" + path)
        except FileNotFoundError:
            return None

    def _may_go(
        self, path: bytes, host: os.stat_result, wanted: Found | None, mounts: set[bytes]
    ) -> None:
        """Raise a _Problem if what the host has must not be replaced or deleted."""
        real = self.top + b"/" + path
        if any(mount == real or mount.startswith(real + b"/") for mount in mounts):
            raise _Problem("another filesystem is mounted there on the host")
        if any(hidden.startswith(path + b"/") for hidden in self.stack.hidden):
            raise _Problem("holds what is not part of the environment")
        if self.since_ns is None or (wanted is not None and self._is_same(path, host, wanted)):
            return
        for at, found in _all_of(real, host):
            if max(found.st_mtime_ns, found.st_ctime_ns) > self.since_ns:
                inside = os.fsdecode(at[len(real) :])
                raise _Problem(f"{inside or 'it'} {HOST_CHANGED}")

    def _is_same(self, path: bytes, host: os.stat_result, wanted: Found | None) -> bool:
        if wanted is None:
            return False
        ours = wanted.stat
        if (ours.st_mode, ours.st_uid, ours.st_gid) != (host.st_mode, host.st_uid, host.st_gid):
            return False
        real = self.top + b"/" + path
        if not stat.S_ISDIR(ours.st_mode) and ours.st_mtime_ns != host.st_mtime_ns:
            return False
        if self.stack.attributes(wanted) != all_attributes(real):
            return False
        if stat.S_ISREG(ours.st_mode):
            return ours.st_size == host.st_size and same_bytes(wanted.real, real)
        if stat.S_ISLNK(ours.st_mode):
            return os.readlink(wanted.real) == os.readlink(real)
        return ours.st_rdev == host.st_rdev

    # -- doing -------------------------------------------------------------------------------

    @staticmethod
    def foreseen(steps: list[_Step]) -> list[Done]:
        """What apply() would do."""
        found: list[Done] = []
        for step in steps:
            action: Action = "replaced"
            if step.wanted is None:
                action = "deleted"
            elif step.host is None:
                action = "created"
            elif step.wanted.is_directory and stat.S_ISDIR(step.host.st_mode):
                action = "attributes"
            found.append(Done(step.path, action, ""))
        return found

    def apply(self, steps: list[_Step]) -> list[Done]:
        for step in steps:
            try:
                self._do(step)
            except OSError as error:
                raise self._failed(step.path, error) from error
        for path, found in reversed(self.directories):
            try:
                name = path.rpartition(b"/")[2]
                set_attributes(
                    self._directory(path) + name, found.stat, self.stack.attributes(found)
                )
            except OSError as error:
                raise self._failed(path, error) from error
        if steps:
            fd = os.open(self.top, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                sync_filesystem(fd)
            os.close(fd)
        return self.done

    def _failed(self, path: bytes, error: OSError) -> ApplyFailed:
        return ApplyFailed(path, error.strerror or str(error), len(self.done))

    def _do(self, step: _Step) -> None:
        path, wanted = step.path, step.wanted
        if wanted is not None:
            self._make_parents(path)
        try:
            directory = self._directory(path)
        except (FileNotFoundError, NotADirectoryError):
            if wanted is None:
                return  # went with its directory
            raise
        place = directory + path.rpartition(b"/")[2]
        now = _lstat(place)
        if now is None and wanted is None:
            return
        if step.host is not None and now is not None and not _unchanged(step.host, now):
            raise OSError(errno.EBUSY, "it is being changed on the host")
        action: Action = "created" if now is None else "replaced"
        note = ""
        if wanted is None:
            action = "deleted"
            remove(place)
        elif wanted.is_directory:
            if now is not None and stat.S_ISDIR(now.st_mode):
                action = "attributes"
            else:
                if now is not None:
                    os.unlink(place)
                os.mkdir(place, 0o700)
            self.directories.append((path, wanted))
        else:
            note = self._put(directory, place, wanted, now)
        self.done.append(Done(path, action, note))

    def _put(
        self, directory: bytes, place: bytes, wanted: Found, now: os.stat_result | None
    ) -> str:
        unfinished = directory + b".timetravel-" + uuid.uuid4().hex[:16].encode() + b".tmp"
        aside = unfinished + b".old"
        attributes, note = self.stack.attributes(wanted), ""
        try:
            try:
                Copier().copy(wanted.real, unfinished, wanted.stat, attributes)
            except PermissionError:
                mine = {n: v for n, v in attributes.items() if not n.startswith("security.")}
                if mine == attributes:
                    raise
                os.unlink(unfinished)
                Copier().copy(wanted.real, unfinished, wanted.stat, mine)
                note = "without its capabilities, which this user may not give"
            if now is not None and stat.S_ISDIR(now.st_mode):
                os.rename(place, aside)
            os.rename(unfinished, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            with contextlib.suppress(OSError):
                os.rename(aside, place)
            raise
        remove(aside)
        return note

    def _make_parents(self, path: bytes) -> None:
        at = b""
        for name in path.split(b"/")[:-1]:
            at = at + b"/" + name if at else name
            place = self._directory(at) + name
            if _lstat(place) is None:
                found = self.stack.lookup(at)
                assert found is not None
                os.mkdir(place, 0o700)
                self.directories.append((at, found))
                self.done.append(Done(at, "created", ""))

    def _directory(self, path: bytes) -> bytes:
        """A way to the directory of a path, with a slash, that leads through no symlink."""
        parent = path.rpartition(b"/")[0]
        if self._parent is None or self._parent[0] != parent:
            fd = os.open(self.top, _DIRECTORY & ~os.O_NOFOLLOW)
            for name in parts(parent):
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=fd)
                finally:
                    os.close(fd)
                fd = below
            self.close()
            self._parent = (parent, fd)
        return b"/proc/self/fd/%d/" % self._parent[1]

    def close(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


class _Problem(Exception):
    pass


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    if stat.S_ISDIR(before.st_mode) and stat.S_ISDIR(now.st_mode):
        return before.st_ino == now.st_ino  # its times follow what we put into it
    return (before.st_ino, before.st_ctime_ns) == (now.st_ino, now.st_ctime_ns)


def _all_of(real: bytes, found: os.stat_result) -> Iterator[tuple[bytes, os.stat_result]]:
    """What is at and below a place on the host, without the directories themselves."""
    todo = [(real, found)]
    while todo:
        at, found = todo.pop()
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(at) as entries:
                todo += [(e.path, e.stat(follow_symlinks=False)) for e in entries]
        else:
            yield at, found


def _mount_points() -> set[bytes]:
    found: set[bytes] = set()
    with contextlib.suppress(OSError), open(_MOUNTINFO, "rb") as file:
        for line in file:
            # proc_pid_mountinfo(5): the mount point is field 5, odd bytes as three octal digits.
            found.add(line.split(b" ")[4].decode("unicode_escape").encode("latin-1"))
    return found
