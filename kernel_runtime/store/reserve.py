"""A little of the disk that is held back, so that checkpoints can be deleted when it is full.

Deleting writes: a row goes by a write to the database's log. Without this file the one way out of
a full disk would need room itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from kernel_runtime.store.errors import StoreError

T = TypeVar("T")

SIZE: Final = 1 << 20
"""Bytes held back; deleting all checkpoints of a long session needs some hundred kilobytes."""


def keep(store: Path) -> None:
    """Hold it back, where the disk has plenty. Never raises."""
    with contextlib.suppress(OSError, AttributeError):  # no such calls on Windows
        found = os.statvfs(store)
        path = store / "reserve"
        if found.f_bavail * found.f_frsize > 16 * SIZE and _size(path) < SIZE:
            fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(fd, 0, SIZE)
            finally:
                os.close(fd)


def used_for(store: Path, action: Callable[[], T]) -> T:
    """Do it; if it fails for want of room, give up what is held back and do it again.

    Raises the StoreError of the last try.
    """
    try:
        return action()
    except StoreError as error:
        if not _wants_room(error.__cause__) or not _give_up(store):
            raise
    return action()


def _wants_room(cause: BaseException | None) -> bool:
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT)
    # SQLite says the first for a write that failed so, the others where its files cannot grow.
    texts = ("is full", "disk I/O error", "unable to open")
    return isinstance(cause, sqlite3.Error) and any(text in str(cause) for text in texts)


def _give_up(store: Path) -> bool:
    """Let the disk have it; whether there was any."""
    path = store / "reserve"
    if not _size(path):
        return False
    try:
        os.truncate(path, 0)
    except OSError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
