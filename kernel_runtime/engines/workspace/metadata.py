"""Setting what is not content: mode, owner, times, extended attributes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from kernel_runtime.engines.workspace import linux
from kernel_runtime.engines.workspace.access import list_xattrs
from kernel_runtime.engines.workspace.model import Entry

Warn = Callable[[str], None]


def set_metadata(fd: int, entry: Entry, warn: Warn) -> None:
    """Give an open file or directory (an O_PATH descriptor will do) the entry's metadata.

    What may not be set is told to warn: the owner, some attributes, anything of what belongs
    to someone else. Raises OSError if the mode or the times of something of ours cannot be set.
    """
    where = f"/proc/self/fd/{fd}"
    found = os.stat(where)
    if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
        _own(where, found, entry, warn)
    _set_xattrs(where, entry, warn)
    try:
        _set_mode_and_time(where, entry)
    except PermissionError as cause:
        if os.geteuid() in (0, found.st_uid):
            raise
        warn(f"mode and time could not be set: {cause.strerror}")


def _set_mode_and_time(where: str, entry: Entry) -> None:
    # After chown, which clears set-user-id, and after ACLs, whose mask is the group's bits.
    if stat.S_IMODE(os.stat(where).st_mode) != entry.mode:
        os.chmod(where, entry.mode)
    now = os.stat(where)
    if now.st_mtime_ns != entry.mtime_ns:
        os.utime(where, ns=(now.st_atime_ns, entry.mtime_ns))


def set_link_metadata(dir_fd: int, name: bytes, entry: Entry, warn: Warn) -> None:
    """The same for a symlink or fifo, by name, following nothing."""
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
        try:
            os.chown(name, entry.uid, entry.gid, dir_fd=dir_fd, follow_symlinks=False)
        except OSError as cause:
            warn(f"owner {entry.uid}:{entry.gid} could not be set: {cause.strerror}")
    if entry.kind == "p" and stat.S_IMODE(found.st_mode) != entry.mode:
        fd = os.open(name, linux.O_PATH | linux.O_NOFOLLOW | linux.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.chmod(f"/proc/self/fd/{fd}", entry.mode)
        finally:
            os.close(fd)
    if found.st_mtime_ns != entry.mtime_ns:
        times = (found.st_atime_ns, entry.mtime_ns)
        os.utime(name, ns=times, dir_fd=dir_fd, follow_symlinks=False)


def open_up(dir_fd: int, name: bytes) -> None:
    """Let the owner read, write and search a directory. Raises OSError."""
    flags = linux.O_PATH | linux.O_NOFOLLOW | linux.O_DIRECTORY | linux.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{fd}", mode | stat.S_IRWXU)
    finally:
        os.close(fd)


def _own(where: str, found: os.stat_result, entry: Entry, warn: Warn) -> None:
    try:
        os.chown(where, entry.uid, entry.gid)
        return
    except OSError as cause:
        reason = cause.strerror
    if found.st_gid != entry.gid:
        # An ordinary user may still give a file to another group of theirs.
        with contextlib.suppress(OSError):
            os.chown(where, -1, entry.gid)
            if found.st_uid == entry.uid:
                return
    warn(f"owner {entry.uid}:{entry.gid} could not be set: {reason}")


def _set_xattrs(where: str, entry: Entry, warn: Warn) -> None:
    wanted = dict(entry.xattrs)
    present, _ = list_xattrs(where)
    for name, value in present:
        if name not in wanted:
            try:
                os.removexattr(where, name)
            except OSError as cause:
                warn(f"extended attribute {name} could not be removed: {cause.strerror}")
        elif wanted[name] == value:
            del wanted[name]
    for name, value in wanted.items():
        try:
            os.setxattr(where, name, value)
        except OSError as cause:
            warn(f"extended attribute {name} could not be set: {cause.strerror}")
