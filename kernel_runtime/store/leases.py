"""What live processes rely on in the store, though no checkpoint names it yet.

A lease is a file that its owner holds locked. The system gives the lock up when the owner
ends, however it ends, so a dead owner is never mistaken for a live one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kernel_runtime.store.digests import Digest

try:
    import fcntl
except ImportError:  # not on Windows, where the engines do not run either
    fcntl = None  # type: ignore[assignment]

_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
_LARGEST: Final = 1 << 20


class Lease:
    """What one live process relies on, though perhaps no checkpoint names it yet.

    Write it inside `adding`. It ends with close(), or with the process, however that ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | _O_CLOEXEC, 0o600)
        if fcntl is not None:
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def set(self, digests: Iterable[Digest]) -> None:
        """Rely on these from now on, and on nothing else. Raises OSError."""
        text = "".join(f"{digest}\n" for digest in digests).encode("ascii")
        # Same length each time for one snapshot: no room is needed on a full disk.
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def close(self) -> None:
        """Rely on nothing any more. The second call does nothing."""
        # First of all: whatever fails below, the number may soon be someone else's.
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        finally:
            os.close(fd)


@contextlib.contextmanager
def locked(directory: Path, *, exclusive: bool) -> Iterator[None]:
    """Shared while something comes into being in a directory, exclusive to delete some of it.

    Exclusive does not wait: raises BlockingIOError while somebody has it. Raises OSError.
    """
    fd = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | _O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def read_lease(file: Path) -> list[Digest]:
    """The digests of a lease; removes it and gives none if its owner has ended."""
    fd = os.open(file, os.O_RDONLY | _O_CLOEXEC)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                pass  # its owner is alive
            else:
                file.unlink()
                return []
        return [Digest(line) for line in os.read(fd, _LARGEST).decode("ascii").split()]
    finally:
        os.close(fd)
