"""Hash what a program writes while it still writes: afterwards only the rest is left to read.

Only for files that are written from their beginning to their end, each byte once. CRIU writes its
pages so; where one were to write a byte again, the image would be found damaged when all of it is
read (``verify``), and it is by then signed: it would be refused, not misread.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from threading import Event
from typing import Final

from kernel_runtime.hashing import AT_ONCE, digests

PIECE: Final = 4 << 20
"""Bytes that are hashed together: four such at once, in one thread."""
_STEP: Final = PIECE * AT_ONCE
_LOOK_S: Final = 0.02

Digests = dict[str, list[str]]
"""For each file's name the digests of its first pieces."""


def follow(directory: Path, names: str, written: Event) -> Digests:
    """Hash what is there of such files, in whole steps, until written is set. names: as of glob.

    Blocks; for a thread. Raises OSError.
    """
    found: Digests = {}
    while True:
        is_last = written.wait(_LOOK_S)
        for path in sorted(directory.glob(names)):
            if is_last or path.stat().st_size < _STEP:
                continue
            known = found.setdefault(path.name, [])
            with open(path, "rb") as file:
                _catch_up(file.fileno(), known, written)
        if is_last:
            return found


def _catch_up(fd: int, known: list[str], written: Event) -> None:
    """Add what a file has more by now, until it is written: the rest is left to others."""
    at = len(known) * PIECE
    while os.fstat(fd).st_size >= at + _STEP and not written.is_set():
        known += pieces_of(fd, at, at + _STEP)
        at += _STEP


def pieces_of(fd: int, start: int, end: int) -> list[str]:
    """The digests of the pieces of [start, end) of a file; start is a multiple of a step."""
    if start == end:
        return []
    with (
        mmap.mmap(fd, end - start, prot=mmap.PROT_READ, offset=start) as mapped,
        memoryview(mapped) as view,
    ):
        parts = [view[at : at + PIECE] for at in range(0, len(view), PIECE)]
        try:
            return digests(parts)
        finally:
            for part in parts:
                part.release()
