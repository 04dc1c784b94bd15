"""What a notebook's file looks like now, and where it is though it was renamed."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kernel_runtime.timeline.documents import CELLS_KEPT, Looks

LARGEST: Final = 64 << 20
"""Bytes: larger notebooks are known by their file alone, since reading one takes seconds."""

# statx(2): AT_FDCWD, STATX_BTIME, and where stx_mask and stx_btime lie in struct statx.
_AT_FDCWD: Final = -100
_BTIME: Final = 0x800
_BTIME_AT: Final = 0x50


def look(path: str | os.PathLike[str], roots: Iterable[Path] = ()) -> Looks:
    """What is at a path now; never raises. roots: directories of the workspace."""
    resolved = os.path.realpath(path)
    places = []
    for root in roots:
        found = identity(root)
        if found is not None:
            places.append((os.path.realpath(root), *found))
    return Looks(resolved, identity(resolved), cells_of(resolved), roots=tuple(places))


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Inode number with its birth in nanoseconds; None if nothing is there.

    Filesystems give a number again as soon as it is free, so alone it says little. Where no birth
    is told the device stands in its place.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, birth_ns(path) or -1 - found.st_dev


def birth_ns(path: str | os.PathLike[str]) -> int:
    """When a file was made (statx(2)); 0 where the system or the filesystem does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    buffer = ctypes.create_string_buffer(256)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _BTIME, buffer):
        return 0
    (mask,) = struct.unpack_from("=I", buffer.raw, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer.raw, _BTIME_AT)
    return seconds * 10**9 + nanoseconds if mask & _BTIME else 0


def cells_of(path: str | os.PathLike[str]) -> frozenset[str] | None:
    """Ids of a notebook's cells, and digests of sources; None where it cannot be read."""
    try:
        if os.stat(path).st_size > LARGEST:
            return None
        with open(path, "rb") as file:
            data: Any = json.loads(file.read(LARGEST + 1))
        cells = data["cells"]
        tokens: list[str] = []
        for cell in cells[: CELLS_KEPT // 2]:
            if isinstance(cell.get("id"), str):
                tokens.append(f"id:{cell['id'][:64]}")
            source = cell.get("source", "")
            text = "".join(source) if isinstance(source, list) else str(source)
            if text.strip():
                tokens.append(_digest(text))
        return frozenset(tokens)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _digest(text: str) -> str:
    data = text.strip().encode("utf-8", "surrogatepass")
    return f"src:{hashlib.blake2b(data, digest_size=8).hexdigest()}"


class Follower:
    """Knows where a notebook's file is while a kernel runs, also after a rename.

    It holds the file open without reading it (O_PATH): the system then tells its present path. An
    editor that replaces the file on saving leaves that one deleted; then the path counts.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._open()

    def where(self) -> str:
        """The path that it has now; the last one that is known if it is gone."""
        if os.path.exists(self.path):
            self._open()
        elif self._fd >= 0:
            with suppress(OSError):
                now = os.readlink(f"/proc/self/fd/{self._fd}")
                if os.path.samestat(os.stat(now), os.fstat(self._fd)):
                    self.path = now
        return self.path

    def close(self) -> None:
        """Let the file go; the second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> None:
        flag: int = getattr(os, "O_PATH", 0)
        if not flag:
            return
        with suppress(OSError):
            if self._fd >= 0 and os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                return
            fd = os.open(self.path, flag | os.O_CLOEXEC)
            self.close()
            self._fd = fd
