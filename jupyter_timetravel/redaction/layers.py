"""Secrets in layers of the environment: files in them that hold one, and their removal.

A layer is a directory, so a file is taken out by deleting it there; what a lower layer or the
machine itself has under that name shows in its place. No kernel may have the layers mounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.timeline import Checkpoint

_PIECE = 1 << 20
_OVERLAY = ("user.overlay.", "trusted.overlay.")


@dataclass(frozen=True)
class Hit:
    """A file of a layer that has to go, or a directory, once it is empty.

    shown: what its path is in the session, as far as known. attribute: it stays, without that
    extended attribute.
    """

    layer: str
    path: bytes
    shown: str
    attribute: str = ""


def look(
    environment: StoredEnvironment,
    checkpoints: Iterable[Checkpoint],
    needle: Needle,
    unread: dict[str, str],
) -> list[Hit]:
    """Find them, in layers that no checkpoint names too. unread: gets what could not be read."""
    roots = _roots(environment, checkpoints)
    found: list[Hit] = []
    for layer in environment.directory.all_layers():
        top = os.fsencode(environment.directory.files(layer))
        where = roots.get(layer, {""})
        wanted = {
            os.fsencode(os.path.relpath(file, root))
            for file in needle.files
            for root in where
            if root and Path(file).is_relative_to(root)
        }
        for path, is_directory in _entries(top):
            relative = path[len(top) + 1 :]
            meant = any(relative == one or relative.startswith(one + b"/") for one in wanted)
            shown = os.path.join(min(where), os.fsdecode(relative))
            if is_directory:
                goes = needle.is_in([relative])
            else:
                goes = meant or _holds(path, relative, needle, unread)
            if goes:
                found.append(Hit(layer, relative, shown))
            else:
                found += [
                    Hit(layer, relative, shown, name) for name in _attributes(path, needle, unread)
                ]
    return found


def remove(environment: StoredEnvironment, hits: Iterable[Hit]) -> None:
    """Delete them. Raises OSError; what was deleted until then is gone, doing it again goes on."""
    for hit in hits:
        path = os.fsencode(environment.directory.files(hit.layer)) + b"/" + hit.path
        if hit.attribute:
            with contextlib.suppress(FileNotFoundError), _writable(path, os.lstat(path)):
                _remove_attribute(path, hit.attribute)
            continue
        parent = os.path.dirname(path)
        before = os.lstat(parent)
        with _writable(parent, before):
            with contextlib.suppress(FileNotFoundError):
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextlib.contextmanager
def _writable(path: bytes, found: os.stat_result) -> Iterator[None]:
    """A layer's directory, or a file in it, may be one that its owner has closed."""
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o700 == 0o700 or stat.S_ISLNK(found.st_mode):
        yield
        return
    os.chmod(path, mode | 0o700)
    try:
        yield
    finally:
        os.chmod(path, mode)


def _roots(
    environment: StoredEnvironment, checkpoints: Iterable[Checkpoint]
) -> dict[str, set[str]]:
    """The directories of the session that each layer lies over."""
    found: dict[str, set[str]] = {}
    stacks = [environment.state.stacks, environment.now()]
    for checkpoint in checkpoints:
        capture = overlay_of(checkpoint)
        if capture is not None:
            stacks += [capture.details.get("stacks", {}), environment.stacks_of(capture)]
    for one in stacks:
        for root, layers in one.items():
            for layer in layers:
                found.setdefault(layer, set()).add(root)
    for root, upper in environment.state.uppers.items():
        found.setdefault(upper, set()).add(root)
    return found


def _entries(top: bytes) -> Iterator[tuple[bytes, bool]]:
    """All paths below, what is in a directory before itself, and whether they are directories."""
    todo = [top]
    directories = []
    while todo:
        here = todo.pop()
        try:
            mode = os.lstat(here)
        except FileNotFoundError:
            continue
        if here != top:
            directories.append(here)
        with _readable(here, mode), os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                else:
                    yield entry.path, False
    for path in reversed(directories):
        yield path, True


@contextlib.contextmanager
def _readable(path: bytes, found: os.stat_result) -> Iterator[None]:
    mode = stat.S_IMODE(found.st_mode)
    needed = 0o500 if stat.S_ISDIR(found.st_mode) else 0o400
    if mode & needed == needed or os.geteuid() == 0:
        yield
        return
    os.chmod(path, mode | needed)
    try:
        yield
    finally:
        os.chmod(path, mode)


def _attributes(path: bytes, needle: Needle, unread: dict[str, str]) -> list[str]:
    """Its extended attributes that hold a text; those of overlayfs are its own."""
    if not needle.patterns:
        return []
    try:
        with _readable(path, os.lstat(path)):
            return [
                name
                for name in os.listxattr(path, follow_symlinks=False)
                if not name.startswith(_OVERLAY)
                and needle.is_in(
                    [os.fsencode(name), b"\n", os.getxattr(path, name, follow_symlinks=False)]
                )
            ]
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENOENT):
            unread[os.fsdecode(path)] = error.strerror or str(error)
        return []


def _remove_attribute(path: bytes, name: str) -> None:
    """Raises OSError. One that is gone already is none to remove."""
    try:
        os.removexattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise


def _holds(path: bytes, relative: bytes, needle: Needle, unread: dict[str, str]) -> bool:
    if not needle.patterns:
        return False
    if needle.is_in([relative]):
        return True
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return needle.is_in([os.readlink(path)])
        if not stat.S_ISREG(found.st_mode):
            return False
        with _readable(path, found), open(path, "rb") as file:
            return needle.is_in(iter(lambda: file.read(_PIECE), b""))
    except OSError as error:
        unread[os.fsdecode(path)] = error.strerror or str(error)
        return False
