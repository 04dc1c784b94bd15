"""Paths as bytes: relative ones, and real ones that may be longer than the kernel takes."""

from __future__ import annotations

import contextlib
import os
from typing import Final

LONG: Final = 3000
"""Bytes of a path after which a descriptor takes its place: a name is at most 255 bytes long, the
kernel takes 4095 in all."""


def parts(path: bytes) -> list[bytes]:
    """The names of a relative path. Raises ValueError for ``..``, ``.`` or a leading slash."""
    names = path.split(b"/") if path else []
    if any(name in (b"", b".", b"..") or b"\0" in name for name in names):
        raise ValueError(f"not a plain relative path: {path!r}")
    return names


def join(path: bytes, name: bytes) -> bytes:
    """The path of a name in a directory, whose own path may be the root's."""
    return path + b"/" + name if path else name


def open_regular(real: bytes) -> int:
    """Open a file for reading; neither follows a symlink nor waits for a fifo. Raises OSError."""
    return os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


class Shortener:
    """Gives a directory's path a form that the kernel takes, by a descriptor where it is long.

    Holds the descriptors until it is closed or forgotten. Raises OSError.
    """

    def __init__(self) -> None:
        self._held: dict[bytes, int] = {}

    def __call__(self, directory: bytes) -> bytes:
        """The same directory; its names may be put behind it."""
        if len(directory) < LONG:
            return directory
        fd = self._held.get(directory)
        if fd is None:
            fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._held[directory] = fd
        return b"/proc/self/fd/%d/." % fd  # the dot: what the link leads to, for lstat too

    def close(self) -> None:
        """Give the descriptors back."""
        while self._held:
            os.close(self._held.popitem()[1])

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def private(path: str, flags: int) -> int:
    """An opener (``open``) for files that are nobody else's, whatever the umask."""
    return os.open(path, flags, 0o600)
