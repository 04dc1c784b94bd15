"""A restored SQLite database is the file that it was, not another one of the same name.

SQLite remembers the inode that it has opened and refuses to write once the name has another one
("attempt to write a readonly database"; databaseIsUnmoved() in its pager.c). A restore swaps files,
so a process that goes back together with its database could not write to it any more. Once the
restore is committed, the content is copied into the old inode, which is in the trash, and the two
are swapped again: at every moment the name has the right content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Sequence
from typing import Final, Literal

from kernel_runtime.engines.workspace import faults, linux
from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.apply import entry_now, identity_at
from kernel_runtime.engines.workspace.journal import Record, Step
from kernel_runtime.engines.workspace.metadata import set_metadata
from kernel_runtime.engines.workspace.staging import OpenStage
from kernel_runtime.engines.workspace.state import Known
from kernel_runtime.store.reflinks import clone_file

LARGEST: Final = 256 << 20
"""Bytes above which a database is not copied once more."""

_MAGIC: Final = b"SQLite format 3\0"
_ROLLBACK_JOURNAL: Final = b"\1\1"
"""Bytes 18 and 19 of the header. In the other mode (WAL) SQLite does not look at the inode, and
other programs may have files beside the database mapped, which must fit it."""
_LOCK_BYTES: Final = (0x40000000, 512)
"""Start and length of what SQLite locks (PENDING_BYTE in os.h)."""
_FLOCK: Final = "hhqqi4x"
_PIECE: Final = 1 << 20
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def could_be(known: object) -> bool:
    """Whether what was captured last of a file speaks for a database: pages of 512 bytes and more.

    So that a restore of thousands of files does not open each of them. It may be empty still.
    """
    return isinstance(known, Known) and known.links == 1 and known.entry.size % 512 == 0


def keep_inodes(
    anchors: Sequence[Anchor], stages: Sequence[OpenStage], record: Record, moved: Sequence[int]
) -> None:
    """Do it for each replaced database of which nobody holds a lock.

    What speaks against it leaves a file as it was restored. moved: the numbers of steps whose
    old object is in the trash; those that `could_be` will do.
    """
    for number in moved:
        step = record.steps[number]
        if step.staged is not None:
            with contextlib.suppress(OSError):
                _keep(anchors[step.root], stages[step.stage], b"%d" % number, step)


def _keep(anchor: Anchor, stage: OpenStage, label: bytes, step: Step) -> None:
    with contextlib.ExitStack() as closing:
        old = os.open(label, _OPEN, dir_fd=stage.trash_fd)
        closing.callback(os.close, old)
        if os.fstat(old).st_nlink != 1:
            return
        for parent in anchor.steady(step.parts):
            new = os.open(step.name, _OPEN, dir_fd=parent)
            closing.callback(os.close, new)
            kinds = {_kind(old), _kind(new)}
            if None in kinds or kinds == {"empty"} or os.fstat(new).st_size > LARGEST:
                return
            _lock(old)
            _lock(new)
            _copy(old, new)
            set_metadata(old, entry_now(new, step.name), lambda _: None)
            os.fsync(old)
            faults.point("same inode")
            before = os.fstat(parent)
            if identity_at(parent, step.name) != step.staged:
                return  # somebody else's by now
            if not anchor.still_below(parent, step.parts):
                return
            linux.rename_at(stage.trash_fd, label, parent, step.name, linux.RENAME_EXCHANGE)
            os.utime(f"/proc/self/fd/{parent}", ns=(before.st_atime_ns, before.st_mtime_ns))
            return


def _kind(fd: int) -> Literal["database", "empty"] | None:
    """What it is: a database before its first table is an empty file."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return None
    if not found.st_size:
        return "empty"
    header = os.pread(fd, 20, 0)
    ours = header.startswith(_MAGIC) and header[18:] == _ROLLBACK_JOURNAL
    return "database" if ours else None


def _lock(fd: int) -> None:
    """As long as the descriptor is open. Raises OSError if a connection has a lock."""
    import fcntl  # not on Windows, where this module must import too

    start, length = _LOCK_BYTES
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)


def _copy(target: int, source: int) -> None:
    size = os.fstat(source).st_size
    try:
        clone_file(target, source)
    except OSError as cause:
        if cause.errno == errno.ENOSPC:
            raise
        for offset in range(0, size, _PIECE):
            piece = os.pread(source, _PIECE, offset)
            if os.pwrite(target, piece, offset) != len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from cause
    os.ftruncate(target, size)
