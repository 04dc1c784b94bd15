"""Directories below a root, opened so that nothing outside can be reached.

Each step opens one component with O_NOFOLLOW. That alone does not notice a directory that is
moved out of the root after it was opened, so whoever changes something asks `still_below`
before and after, and takes the change back if the answer is no.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace import linux
from kernel_runtime.engines.workspace.operations import Parts

_DIRECTORY: Final = linux.O_PATH | linux.O_DIRECTORY | linux.O_NOFOLLOW | linux.O_CLOEXEC
_ATTEMPTS: Final = 200
_PAUSE_S: Final = 0.002


class MovedAway(OSError):
    """A directory is not below its root any more, or something else is in its place."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(errno.ESTALE, "another program keeps moving or replacing a directory")
        self.parts = parts


class Anchor:
    """One open root. Raises OSError if the root is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | linux.O_DIRECTORY | linux.O_CLOEXEC)
        found = os.fstat(self.fd)
        self.identity = (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Close the root."""
        os.close(self.fd)

    def open(self, parts: Parts) -> int:
        """A descriptor (O_PATH) of a directory below. Raises OSError."""
        fd = os.open(".", _DIRECTORY, dir_fd=self.fd)
        for name in parts:
            try:
                below = os.open(name, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def still_below(self, fd: int, parts: Parts) -> bool:
        """Whether a directory has this path below the root at this moment.

        The kernel is asked for the path of both descriptors, which needs no permission; where
        that is longer than a page, the way up is climbed.
        """
        try:
            top = os.readlink(f"/proc/self/fd/{self.fd}".encode("ascii"))
            here = os.readlink(f"/proc/self/fd/{fd}".encode("ascii"))
        except OSError:
            return self._climbs_to_root(fd, len(parts))
        return here == b"/".join((top.rstrip(b"/"), *parts)) if parts else here == top

    def steady(self, parts: Parts) -> Iterator[int]:
        """Descriptors of one directory, each a new attempt, for a loop that returns when done.

        Someone may be swapping directories all the time. Raises MovedAway at the end.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            try:
                fd = self.open(parts)
            except OSError as cause:
                if cause.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                continue
            with contextlib.closing(_Open(fd)):
                if self.still_below(fd, parts):
                    yield fd
        raise MovedAway(parts)

    def _climbs_to_root(self, fd: int, depth: int) -> bool:
        at = os.dup(fd)
        try:
            for _ in range(depth):
                above = os.open("..", _DIRECTORY, dir_fd=at)
                os.close(at)
                at = above
            found = os.fstat(at)
        except OSError:
            return False
        finally:
            os.close(at)
        return (found.st_dev, found.st_ino) == self.identity


class _Open:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)
