"""Making single entries of a layer: exact copies, attributes in the right order, removal.

Paths are absolute bytes, short enough for the kernel (paths.Shortener). No symlink is followed.
All raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Final

from kernel_runtime.engines.overlay.markers import all_attributes
from kernel_runtime.engines.overlay.paths import Shortener, open_regular
from kernel_runtime.store.holes import data_segments
from kernel_runtime.store.reflinks import clone_file

_BLOCK: Final = 1 << 20
_NOT_HERE: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY)
"""What a reflink or copy_file_range(2) says where the filesystem cannot do it."""


def set_attributes(target: bytes, like: os.stat_result, attributes: Mapping[str, bytes]) -> None:
    """Give something that was just made owner, mode, extended attributes and times.

    A change of owner clears set-user-id and capabilities, so it comes first; ``user.*`` needs
    write permission, so it comes before the mode; an access list is part of the mode, so it comes
    after it; all but the times changes the times.
    """
    here = os.lstat(target)
    if (here.st_uid, here.st_gid) != (like.st_uid, like.st_gid):
        os.chown(target, like.st_uid, like.st_gid, follow_symlinks=False)
    for name in all_attributes(target):
        if name not in attributes:
            os.removexattr(target, name, follow_symlinks=False)  # a default access list's doing
    for name, value in attributes.items():
        if name.startswith("user."):
            os.setxattr(target, name, value, follow_symlinks=False)
    if not stat.S_ISLNK(like.st_mode):
        mode = stat.S_IMODE(like.st_mode)
        if stat.S_IMODE(os.lstat(target).st_mode) != mode:
            os.chmod(target, mode)
    for name, value in attributes.items():
        if not name.startswith("user."):
            os.setxattr(target, name, value, follow_symlinks=False)
    set_times(target, like)


def set_times(target: bytes, like: os.stat_result) -> None:
    """Give something the times of something else, to the nanosecond."""
    os.utime(target, ns=(like.st_atime_ns, like.st_mtime_ns), follow_symlinks=False)


class Copier:
    """Copies what is not a directory. Hard links among what it copies stay hard links."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], bytes] = {}
        self._no_clone: set[tuple[int, int]] = set()

    def copy(
        self,
        source: bytes,
        target: bytes,
        found: os.stat_result,
        attributes: Mapping[str, bytes] | None = None,
    ) -> None:
        """Make target, which must not exist. attributes: None for those of the source."""
        key = (found.st_dev, found.st_ino)
        made = self._made.get(key)
        if made is not None:
            with contextlib.suppress(OSError):  # EMLINK: one more copy
                os.link(made, target, follow_symlinks=False)
                return
        if stat.S_ISREG(found.st_mode):
            self._content(source, target)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), target)
        else:  # a fifo, a socket's name, a device, a whiteout
            os.mknod(target, found.st_mode, found.st_rdev)
        set_attributes(target, found, all_attributes(source) if attributes is None else attributes)
        if found.st_nlink > 1:
            self._made[key] = target

    def _content(self, source: bytes, target: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        source_fd = open_regular(source)
        try:
            target_fd = os.open(target, flags, 0o600)
            try:
                self._fill(source_fd, target_fd)
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)

    def _fill(self, source: int, target: int) -> None:
        found = os.fstat(source)
        pair = (found.st_dev, os.fstat(target).st_dev)
        if found.st_size == 0:
            return
        if pair not in self._no_clone:
            try:
                clone_file(target, source)
                return
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                self._no_clone.add(pair)
        for begin, end in data_segments(source, found.st_size):
            copy_range(source, target, begin, end)
        os.ftruncate(target, found.st_size)


def copy_range(source: int, target: int, begin: int, end: int) -> None:
    """Copy a part of one file to the same place in another; stops at the source's end."""
    while begin < end:
        try:
            copied = os.copy_file_range(source, target, end - begin, begin, begin)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            copied = os.pwrite(target, os.pread(source, min(end - begin, _BLOCK), begin), begin)
        if copied == 0:
            return
        begin += copied


@contextlib.contextmanager
def made_whole(target: bytes) -> Iterator[bytes]:
    """A name in the same directory under which to make target; it gets its own at the end.

    If that fails, nothing is left. Raises FileExistsError.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    where, _, name = target.rpartition(b"/")
    unfinished = where + b"/." + name[:200] + b"." + os.urandom(8).hex().encode() + b".tmp"
    try:
        yield unfinished
        os.rename(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(unfinished)
        raise


def remove(path: bytes) -> None:
    """Delete whatever is there, a tree too, of any depth and with whatever modes."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    short = Shortener()
    todo = [(path, _listed(path))]
    try:
        while todo:
            directory, names = todo[-1]
            if not names:
                todo.pop()
                os.rmdir(directory)
                continue
            below = short(directory) + b"/" + names.pop()
            if stat.S_ISDIR(os.lstat(below).st_mode):
                todo.append((below, _listed(short(below))))
            else:
                os.unlink(below)
    finally:
        short.close()


def _listed(directory: bytes) -> list[bytes]:
    """The names in a directory, which is opened up for its owner before."""
    if os.lstat(directory).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(directory, stat.S_IRWXU)
    return os.listdir(directory)
