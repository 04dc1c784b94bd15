"""Secrets in layers of the environment: files in them that hold one, and their removal.

A layer is a directory, so a file is taken out by deleting it there; what a lower layer or the
machine itself has under that name shows in its place. No kernel may have the layers mounted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.timeline import Checkpoint

_PIECE = 1 << 20


@dataclass(frozen=True)
class Hit:
    """A file of a layer that has to go. shown: what its path is in the session, as far as known."""

    layer: str
    path: bytes
    shown: str


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
        for path in _files(top):
            relative = path[len(top) + 1 :]
            meant = any(relative == one or relative.startswith(one + b"/") for one in wanted)
            if meant or _holds(path, relative, needle, unread):
                shown = os.path.join(min(where), os.fsdecode(relative))
                found.append(Hit(layer, relative, shown))
    return found


def remove(environment: StoredEnvironment, hits: Iterable[Hit]) -> None:
    """Delete them. Raises OSError; what was deleted until then is gone, doing it again goes on."""
    for hit in hits:
        path = os.fsencode(environment.directory.files(hit.layer)) + b"/" + hit.path
        parent = os.path.dirname(path)
        before = os.lstat(parent)
        with _writable(parent, before):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.utime(parent, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextlib.contextmanager
def _writable(directory: bytes, found: os.stat_result) -> Iterator[None]:
    """A layer's directory may be one that its owner has closed."""
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o700 == 0o700:
        yield
        return
    os.chmod(directory, mode | 0o700)
    try:
        yield
    finally:
        os.chmod(directory, mode)


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


def _files(top: bytes) -> Iterator[bytes]:
    """Whatever is not a directory, directories that are closed included."""
    todo = [top]
    while todo:
        here = todo.pop()
        try:
            mode = os.lstat(here)
        except FileNotFoundError:
            continue
        with _readable(here, mode), os.scandir(here) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                else:
                    yield entry.path


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
