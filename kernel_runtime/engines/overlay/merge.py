"""Several layers into one that says the same: for stacks that grow long and pruned checkpoints.

Files are hard-linked, so nothing is copied and inode numbers stay; only directories are made anew.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

from kernel_runtime.engines.overlay.entries import Copier, made_whole, set_attributes
from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.paths import Shortener
from kernel_runtime.later import dataclass
from kernel_runtime.store.reflinks import sync_filesystem

_NO_LINK: Final = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP)


def merge(
    layers: Sequence[Path],
    target: Path,
    markers: Markers,
    bottom: bool = False,
    *,
    durable: bool = True,
) -> None:
    """Make target a layer that can stand for these, which are given newest first.

    They must be neighbours in a stack, and stay as they are; the target must not exist, and is
    there whole or not at all. A file that cannot be hard-linked (EMLINK, EXDEV) is copied.
    bottom: nothing lies below, so deletions need not be said. durable: write it back to the disk
    before it gets its name, so that the layers may be deleted then. Raises OSError.
    """
    if not layers:
        raise ValueError("no layers to merge")
    with made_whole(os.fsencode(target)) as unfinished:
        _Merger(markers).run([os.fsencode(layer) for layer in layers], unfinished, bottom)
        if durable:
            fd = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_filesystem(fd)
            finally:
                os.close(fd)


@dataclass
class _Frame:
    """A directory that is being made. sources: what it is made of, newest first.

    through: whether layers below the merged ones show in it. opaque: whether it must say that they
    do not.
    """

    target: bytes
    sources: list[bytes]
    through: bool
    opaque: bool
    names: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    whiteouts: bool = False


class _Merger:
    def __init__(self, markers: Markers) -> None:
        self._markers, self._copier, self._short = markers, Copier(), Shortener()

    def run(self, layers: list[bytes], target: bytes, bottom: bool) -> None:
        try:
            # The kernel merges roots whatever they say, so what is opaque does not count there.
            todo = [self._begun(_Frame(target, layers, not bottom, False))]
            while todo:
                frame = todo[-1]
                if not frame.names:
                    self._finish(todo.pop())
                    continue
                name, holders = frame.names.pop()
                below = self._entry(frame, name, holders)
                if below is not None:
                    todo.append(self._begun(below))
        finally:
            self._short.close()

    def _begun(self, frame: _Frame) -> _Frame:
        os.mkdir(frame.target, 0o700)
        frame.target = self._short(frame.target)
        frame.sources = [self._short(source) for source in frame.sources]
        holders: dict[bytes, list[bytes]] = {}
        for source in frame.sources:
            for name in os.listdir(source):
                holders.setdefault(name, []).append(source)
        frame.names = sorted(holders.items(), reverse=True)
        return frame

    def _entry(self, frame: _Frame, name: bytes, holders: list[bytes]) -> _Frame | None:
        """Make what a name is, the rules being those of Stack.child; a directory is returned."""
        target = frame.target + b"/" + name
        directories: list[bytes] = []
        through = frame.through
        for source in holders:
            real = source + b"/" + name
            found = os.lstat(real)
            if stat.S_ISDIR(found.st_mode):
                directories.append(real)
                if self._markers.is_opaque(real):
                    through = False
                    break
                continue
            if directories:
                through = False
            elif not self._markers.is_deletion(real, found):
                self._link(real, target, found)
            elif frame.through:
                self._markers.make_whiteout(target)
                frame.whiteouts = True
            break
        if not directories:
            return None
        return _Frame(target, directories, through, frame.through and not through)

    def _link(self, source: bytes, target: bytes, found: os.stat_result) -> None:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._copier.copy(source, target, found, self._markers.raw_attributes(source))

    def _finish(self, frame: _Frame) -> None:
        newest = frame.sources[0]
        attributes = self._markers.raw_attributes(newest)
        if frame.opaque:
            attributes[self._markers.opaque] = b"y"
        if frame.whiteouts:
            # It may be the only one of its path in a stack: see set_may_have_whiteouts.
            attributes[self._markers.origin] = b""
        set_attributes(frame.target, os.lstat(newest), attributes)
