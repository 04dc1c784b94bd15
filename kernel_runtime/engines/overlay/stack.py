"""What a mount of layers shows, without mounting: the kernel's rules of merging, read only.

Found from the top: the newest layer that has a path decides what it is. A directory goes on being
merged with the same path of the layers below, until a layer says otherwise: a whiteout, a
directory that is opaque, or anything that is not a directory. So a plain directory over a whiteout
hides what lies below the whiteout.

Paths are bytes relative to the root, ``b""`` is the root itself. No symlink is followed, and no
path with ``..`` or empty parts is taken. Everything raises OSError as the real calls do, for
instance PermissionError for a directory of the base that this user may not list.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.engines.overlay.paths import LONG, Shortener, join, open_regular, parts


class Layered(NamedTuple):
    """One directory of one layer. level: 0 is the newest layer, len(layers) the base."""

    level: int
    real: bytes


class Found(NamedTuple):
    """What is at a path. real: where it is on the disk (valid while the stack is open).

    merged: for a directory, what it is made of, newest first; the first one is real.
    """

    real: bytes
    stat: os.stat_result
    from_base: bool
    merged: tuple[Layered, ...] = ()

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory; a symlink to one is not."""
        return stat.S_ISDIR(self.stat.st_mode)


class Stack:
    """A merged view. Layers and base are directories and must be there: else OSError.

    hidden: paths of the base that are masked away. Not thread safe; costs no descriptor except for
    paths of more than 3,000 bytes, which close() gives back.
    """

    def __init__(
        self,
        layers: Sequence[Path],
        base: Path | None,
        markers: Markers,
        hidden: frozenset[bytes] = frozenset(),
    ) -> None:
        self.layers: Final = tuple(layers)
        self.base: Final = base
        self.markers: Final = markers
        self.hidden: Final = hidden
        self.short: Final = Shortener()
        """Gives a path of a directory that may be too long a form that the kernel takes."""
        places = [*self.layers, *([] if base is None else [base])]
        for place in places:
            if not stat.S_ISDIR(os.stat(place).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
        self._top: Final = tuple(
            Layered(level, os.fsencode(place)) for level, place in enumerate(places)
        )

    def close(self) -> None:
        """Give back descriptors of long paths."""
        self.short.close()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lookup(self, path: bytes) -> Found | None:
        """What is at a path, or None. Raises OSError, ValueError for ``..``."""
        found = self.root()
        done = b""
        for name in parts(path):
            if found is None or not found.merged:
                return None
            done = join(done, name)
            found = self.child(found.merged, done, name)
        return found

    def listdir(self, path: bytes) -> dict[bytes, Found]:
        """What is in a directory. Raises OSError: also NotADirectoryError, FileNotFoundError."""
        found = self.lookup(path)
        if found is None or not found.is_directory:
            code = errno.ENOENT if found is None else errno.ENOTDIR
            raise OSError(code, os.strerror(code), path)
        return self.entries(found.merged, path)

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, Found]]:
        """Everything below a path, parents first, names in order; not the path itself.

        Nothing if there is no directory. Raises OSError.
        """
        found = self.lookup(path)
        if found is not None:
            yield from self.below(path, found)

    def read_bytes(self, path: bytes, most: int | None = None) -> bytes:
        """The content of a regular file, at most so many bytes of it.

        Raises OSError: FileNotFoundError, IsADirectoryError, and EINVAL for what is neither.
        """
        found = self.lookup(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not stat.S_ISREG(found.stat.st_mode):
            code = errno.EISDIR if found.is_directory else errno.EINVAL
            raise OSError(code, os.strerror(code), path)
        with open(open_regular(found.real), "rb") as file:
            return file.read(-1 if most is None else most)

    def readlink(self, path: bytes) -> bytes:
        """The target of a symlink. Raises OSError: EINVAL for what is none."""
        found = self.lookup(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return os.readlink(found.real)

    def attributes(self, found: Found) -> dict[str, bytes]:
        """The extended attributes of what was found, as a mount shows them. Raises OSError."""
        return self.markers.visible_attributes(found.real)

    # For callers that go down by themselves, at one lookup for each name.

    def root(self) -> Found | None:
        """The root directory; None where there is neither a layer nor a base."""
        if not self._top:
            return None
        first = self._top[0]
        return Found(first.real, os.stat(first.real), self._is_base(first), self._top)

    def child(self, merged: Sequence[Layered], path: bytes, name: bytes) -> Found | None:
        """One name in a directory made of these; path is the child's own."""
        top: bytes | None = None
        what: os.stat_result | None = None
        below: list[Layered] = []
        last = len(merged) - 1
        for index, (level, directory) in enumerate(merged):
            is_base = level == len(self.layers)
            if is_base and path in self.hidden:
                break
            if len(directory) >= LONG:
                directory = self.short(directory)
            real = directory + b"/" + name
            try:
                found = os.lstat(real)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                    continue
                raise
            if not stat.S_ISDIR(found.st_mode):
                if what is None and not self.markers.is_deletion(real, found):
                    return Found(real, found, is_base)
                break
            if what is None:
                top, what = real, found
            below.append(Layered(level, real))
            if index < last and not is_base and self._ends_here(real):
                break
        if what is None or top is None:
            return None
        return Found(top, what, self._is_base(below[0]), tuple(below))

    def _ends_here(self, real: bytes) -> bool:
        try:
            return self.markers.is_opaque(real)
        except PermissionError:
            return True  # who may not read its attributes may not list it either

    def entries(self, merged: Sequence[Layered], path: bytes) -> dict[bytes, Found]:
        """All names in a directory made of these; path is the directory's own."""
        holders: dict[bytes, list[Layered]] = {}
        for layered in merged:
            for name in os.listdir(self.short(layered.real)):
                holders.setdefault(name, []).append(layered)
        found: dict[bytes, Found] = {}
        for name in sorted(holders):
            child = self.child(holders[name], join(path, name), name)
            if child is not None:
                found[name] = child
        return found

    def below(self, path: bytes, found: Found) -> Iterator[tuple[bytes, Found]]:
        """Everything below a directory that was found, as walk() does."""
        if not found.is_directory:
            return
        todo = [(path, iter(self.entries(found.merged, path).items()))]
        while todo:
            where, names = todo[-1]
            for name, child in names:
                at = join(where, name)
                yield at, child
                if child.is_directory:
                    todo.append((at, iter(self.entries(child.merged, at).items())))
                    break
            else:
                todo.pop()

    def _is_base(self, layered: Layered) -> bool:
        return layered.level == len(self.layers)
