"""Making what a restore puts in place, in a directory of its own beside it.

A stage is a directory on the filesystem of the names it serves, with two below: new/ for what
will be put in place, trash/ for what was there. Entries are called by the number of their
step. Nothing in the user's tree changes while a stage is filled, so a full disk or a damaged
blob is found out in time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kernel_runtime.engines.workspace import faults, linux
from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.journal import Identity, Stage
from kernel_runtime.engines.workspace.metadata import set_link_metadata, set_metadata
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.operations import Parts, Place, join
from kernel_runtime.engines.workspace.rules import STAGING_PREFIX
from kernel_runtime.engines.workspace.tree import Reader, TreeDamaged
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobError, BlobMissing, BlobStore, Digest
from kernel_runtime.store.reflinks import clone_file, sync_filesystem

_DIRECTORY: Final = linux.O_DIRECTORY | linux.O_NOFOLLOW | linux.O_CLOEXEC
_SYNC_ONE_BY_ONE: Final = 16

Skip = Callable[[int, bytes], bool]
"""Whether a path below a root is left alone, also in a directory that is made anew."""

Warn = Callable[[bytes, str], None]
Problem = tuple[bytes, str]


@dataclass
class OpenStage:
    """A stage with descriptors of its parts. device: st_dev of its filesystem."""

    where: Stage
    device: int
    fd: int
    new_fd: int
    trash_fd: int

    def close(self) -> None:
        """Close the descriptors; the directory stays."""
        for fd in (self.new_fd, self.trash_fd, self.fd):
            os.close(fd)


def plan_stage(anchor: Anchor, root: int, parts: Parts, after: Entry | None) -> Stage:
    """A stage that is to be made. after: what its directory will be; None: what it is."""
    for parent in anchor.steady(parts):
        found = os.fstat(parent)
        break
    before = (stat.S_IMODE(found.st_mode), found.st_mtime_ns)
    name = STAGING_PREFIX + uuid.uuid4().hex[:16].encode("ascii")
    later = before if after is None else (after.mode, after.mtime_ns)
    return Stage(root, parts, name, before, later)


def make_stage(anchor: Anchor, where: Stage) -> OpenStage:
    """Create a planned stage. Raises OSError."""
    for parent in anchor.steady(where.parts):
        _let_in(parent)
        os.mkdir(where.name, 0o700, dir_fd=parent)
        break
    opened = open_stage(anchor, where)
    if opened is None:
        raise FileNotFoundError(errno.ENOENT, "the working directory of the restore was removed")
    return opened


def open_stage(anchor: Anchor, where: Stage) -> OpenStage | None:
    """Open a stage that a journal names; None if it is not there. Raises OSError."""
    for parent in anchor.steady(where.parts):
        _let_in(parent)
        try:
            fd = os.open(where.name, os.O_RDONLY | _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            return None
        break
    for name in (b"new", b"trash"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=fd)
    new_fd = os.open(b"new", os.O_RDONLY | _DIRECTORY, dir_fd=fd)
    trash_fd = os.open(b"trash", os.O_RDONLY | _DIRECTORY, dir_fd=fd)
    return OpenStage(where, os.fstat(fd).st_dev, fd, new_fd, trash_fd)


def remove_stage(anchor: Anchor, where: Stage, *, committed: bool) -> list[Problem]:
    """Delete a stage with all that is in it, and give its directory its mode and time.

    Returns what could not be done. Safe to repeat.
    """
    problems: list[Problem] = []
    mode, mtime_ns = where.after if committed else where.before
    try:
        for parent in anchor.steady(where.parts):
            _let_in(parent)
            _remove(parent, where.name, join(where.parts, where.name), problems)
            faults.point("removed")
            with contextlib.suppress(PermissionError):  # someone else's directory
                path = f"/proc/self/fd/{parent}"
                os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))
                os.chmod(path, mode)
            break
    except FileNotFoundError:
        pass
    except OSError as cause:
        problems.append((join(where.parts, where.name), cause.strerror or "not removed"))
    return problems


def _let_in(parent: int) -> None:
    """Let the owner change names in a directory; whoever made a stage knows the old mode."""
    found = os.fstat(parent)
    if found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{parent}", stat.S_IMODE(found.st_mode) | stat.S_IRWXU)


class Stager:
    """Fills stages. warn is told what comes back not quite the same.

    allow_missing: a file of a new directory whose content cannot be read is left out, and told
    too, instead of failing.
    """

    def __init__(
        self, store: BlobStore, reader: Reader, *, skip: Skip, warn: Warn, allow_missing: bool
    ) -> None:
        self._store, self._reader, self._skip, self._warn = store, reader, skip, warn
        self._allow_missing = allow_missing
        self._groups: dict[tuple[int, str], tuple[int, bytes]] = {}
        self._unsynced: list[int] = []
        self._descriptors: list[int] = []
        self._count = 0
        self.written_bytes = 0

    def make(self, stage: OpenStage, number: int, place: Place) -> Identity:
        """Make what a step puts in place; its identity. Raises OSError, BlobError."""
        name = str(number).encode("ascii")
        entry = replace(place.target, name=name)
        path = join(place.parent, place.name)
        try:
            self._make(stage.new_fd, entry, place.root, path, stage.device, top=True)
        except BaseException:
            _remove(stage.new_fd, name, path, [])
            raise
        found = os.stat(name, dir_fd=stage.new_fd, follow_symlinks=False)
        return found.st_dev, found.st_ino

    def sync(self, stages: list[OpenStage]) -> None:
        """Make everything durable that was made. Raises OSError."""
        if self._count > _SYNC_ONE_BY_ONE:
            for fd in {stage.device: stage.fd for stage in stages}.values():
                sync_filesystem(fd)
        else:
            for fd in self._unsynced:
                os.fsync(fd)
        self.close()

    def close(self) -> None:
        """Close what is still open."""
        for fd in (*self._unsynced, *self._descriptors):
            os.close(fd)
        self._unsynced, self._descriptors = [], []

    def _make(
        self, dir_fd: int, entry: Entry, root: int, path: bytes, device: int, *, top: bool
    ) -> None:
        faults.point("stage")
        if entry.kind == "f":
            self._file(dir_fd, entry, path, device)
        elif entry.kind == "d":
            self._directory(dir_fd, entry, root, path, device, top=top)
        elif entry.kind == "l":
            os.symlink(entry.target, entry.name, dir_fd=dir_fd)
            set_link_metadata(dir_fd, entry.name, entry, lambda why: self._warn(path, why))
        else:
            os.mkfifo(entry.name, 0o600, dir_fd=dir_fd)
            set_link_metadata(dir_fd, entry.name, entry, lambda why: self._warn(path, why))

    def _directory(
        self, dir_fd: int, entry: Entry, root: int, path: bytes, device: int, *, top: bool
    ) -> None:
        os.mkdir(entry.name, 0o700, dir_fd=dir_fd)
        fd = os.open(entry.name, os.O_RDONLY | _DIRECTORY, dir_fd=dir_fd)
        try:
            for child in self._reader.directory(entry.tree).values():
                below = path + b"/" + child.name
                if self._skip(root, below):
                    continue
                try:
                    self._make(fd, child, root, below, device, top=False)
                except (BlobError, TreeDamaged) as cause:
                    if not self._allow_missing:
                        raise
                    _remove(fd, child.name, below, [])
                    self._warn(below, f"does not come back: {cause}")
            # Moving a directory needs write permission on it, so the topmost one gets its own
            # mode after it was put in place.
            final = replace(entry, mode=entry.mode | stat.S_IRWXU) if top else entry
            set_metadata(fd, final, lambda why: self._warn(path, why))
        finally:
            os.close(fd)

    def _file(self, dir_fd: int, entry: Entry, path: bytes, device: int) -> None:
        if entry.link:
            leader = self._groups.get((device, entry.link))
            if leader is not None:
                os.link(
                    leader[1], entry.name, src_dir_fd=leader[0], dst_dir_fd=dir_fd,
                    follow_symlinks=False,
                )  # fmt: skip
                return
        fd = self._held(dir_fd, entry) if entry.held else self._write(dir_fd, entry)
        try:
            if self._genuine(fd, entry):
                set_metadata(fd, entry, lambda why: self._warn(path, why))
            else:
                self._warn(path, "was written in place since: its content is the later one")
        finally:
            self._count += 1
            if self._count <= _SYNC_ONE_BY_ONE:
                self._unsynced.append(fd)
            else:
                os.close(fd)
        if entry.link:
            kept = os.dup(dir_fd)
            self._descriptors.append(kept)
            self._groups[device, entry.link] = (kept, entry.name)

    def _write(self, dir_fd: int, entry: Entry) -> int:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | linux.O_NOFOLLOW | linux.O_CLOEXEC
        fd = os.open(entry.name, flags, 0o600, dir_fd=dir_fd)
        try:
            os.ftruncate(fd, entry.size)
            for offset, length, digest in entry.chunks:
                if self._store.write_into(digest, fd, offset) != length:
                    raise BlobMissing(digest, "it has another length than its manifest says")
                self.written_bytes += length
            os.ftruncate(fd, entry.size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _held(self, dir_fd: int, entry: Entry) -> int:
        token = entry.chunks[0][2] if entry.chunks else Digest("")
        held = self._store.held_path(token)
        if entry.held == "link":
            os.link(held, entry.name, dst_dir_fd=dir_fd, follow_symlinks=False)
            flags = os.O_RDONLY | linux.O_NOFOLLOW | linux.O_CLOEXEC
            return os.open(entry.name, flags, dir_fd=dir_fd)
        source = os.open(held, os.O_RDONLY | linux.O_CLOEXEC)
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | linux.O_NOFOLLOW | linux.O_CLOEXEC
            fd = os.open(entry.name, flags, 0o600, dir_fd=dir_fd)
            clone_file(fd, source)
        finally:
            os.close(source)
        return fd

    def _genuine(self, fd: int, entry: Entry) -> bool:
        """Whether a file held by a hard link is still what it was."""
        if entry.held != "link":
            return True
        found = os.fstat(fd)
        return (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns)


def _remove(dir_fd: int, name: bytes, path: bytes, problems: list[Problem]) -> None:
    """Delete a tree, following nothing; directories are opened up first."""
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=dir_fd)
            return
        pinned = os.open(name, linux.O_PATH | _DIRECTORY, dir_fd=dir_fd)
        try:
            if found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{pinned}", stat.S_IRWXU)
            fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=pinned)
        finally:
            os.close(pinned)
        try:
            for child in os.listdir(fd):
                _remove(fd, os.fsencode(child), path + b"/" + os.fsencode(child), problems)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return
    except OSError as cause:
        problems.append((path, cause.strerror or "not removed"))
