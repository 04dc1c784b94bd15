"""Copies of the programs and libraries that CRIU's images refer to: each once for all of a store.

Layout below ``<store>/criu-libraries/`` (directory 0700, files 0600):

    <digest>    the file
    files       by which inode, size and times it is known that it has that digest (file_digests.py)

Written and deleted under the lock of the images (dumps.py). A copy **must** be on the disk and have
its digest before it gets its name, and its digest again before something of it is mapped: it is
code. It is made after the first image that names it: until then that image needs the file itself.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kernel_runtime.store.file_digests import NAME, KeptDigests, digest_like, key_of
from kernel_runtime.store.image_model import FileInUse
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.paths import private_directory, private_opener, sync
from kernel_runtime.store.reflinks import clone_file

FOLDER: Final = "criu-libraries"

_PIECE: Final = 8 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_SCRATCH: Final = "tmp-"
_NAMED: Final = 3

OpenFile = tuple[int, FileInUse]
"""A descriptor, and what it is of, with its digest."""


class CopyingEnded(Exception):
    """Whoever had copies made has not waited for all of them."""


class Libraries:
    """The copies of one store. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self.digests = KeptDigests(self.path, keys)

    def missing(self, files: Sequence[OpenFile]) -> list[OpenFile]:
        """Those of these files of which there is no copy, or a damaged one; each once."""
        wanted = {file.digest: (fd, file) for fd, file in files}
        return [one for digest, one in wanted.items() if not self._is_there(digest)]

    def has(self, digest: str) -> bool:
        """Whether there is a copy; not whether it is undamaged."""
        return (self.path / digest).exists()

    def keep(self, files: Sequence[OpenFile], wanted: Callable[[], bool] = lambda: True) -> None:
        """See that there is a copy of each of these files, with its digest; durable on return.

        Blocks. wanted: asked now and then, whether to go on. Raises OSError, naming the file, where
        one does not have its digest (any more): there are copies of the others then; StoreError;
        CopyingEnded.
        """
        missing = self.missing(files)
        if not missing:
            return
        private_directory(self.path)
        changed = []
        try:
            for fd, file in missing:
                if not wanted():
                    raise CopyingEnded
                if not self._make(fd, file, wanted):
                    changed.append(file.path)
            sync(self.path)
        finally:
            self.digests.save()
        if changed:
            what = f"{', '.join(changed[:_NAMED])}{' …' * (len(changed) > _NAMED)}"
            raise OSError(errno.ESTALE, f"changed before it was copied: {what}")

    def _make(self, fd: int, file: FileInUse, wanted: Callable[[], bool]) -> bool:
        """Make one copy; say whether it has the digest. Raises OSError, CopyingEnded."""
        scratch = self.path / f"{_SCRATCH}{secrets.token_hex(8)}"
        try:
            with open(scratch, "x+b", opener=private_opener) as copy:
                _copy(fd, copy.fileno(), wanted)
                before = key_of(os.fstat(copy.fileno()))
                if digest_like(copy.fileno(), file.digest) != file.digest:
                    return False
                os.fsync(copy.fileno())
                os.rename(scratch, self.path / file.digest)
                after = key_of(os.fstat(copy.fileno()))
                if after[:-1] == before[:-1]:  # a new name is a new ctime
                    self.digests.add(after, file.digest)
            return True
        finally:
            scratch.unlink(missing_ok=True)

    def open(self, digest: str, directory: int | None = None) -> int:
        """A descriptor of a copy that has its digest. Raises OSError where there is none.

        directory: another descriptor of the folder, such as of a mount that is read-only.
        """
        path = self.path / digest if directory is None else digest
        fd = os.open(path, _READ, dir_fd=directory)
        try:
            key = key_of(os.fstat(fd))
            if self.digests.get(key) != digest:
                if digest_like(fd, digest) != digest:
                    raise OSError(errno.EIO, "it does not hold what was written")
                self.digests.add(key, digest)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def verify(self, digest: str) -> None:
        """Read a copy and compare. Raises OSError."""
        fd = os.open(self.path / digest, _READ)
        try:
            if digest_like(fd, digest) != digest:
                raise OSError(errno.EIO, "it does not hold what was written")
        finally:
            os.close(fd)

    def _is_there(self, digest: str) -> bool:
        with suppress(OSError):
            os.close(self.open(digest))
            return True
        return False  # what is damaged is written anew

    def sweep(self, keep: Container[str]) -> None:
        """Delete the copies that are not to be kept. Nobody may be writing. Raises OSError."""
        for path in _entries(self.path):
            if path.name != NAME and path.name not in keep:
                path.unlink()


def _entries(folder: Path) -> Iterable[Path]:
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def _copy(source: int, target: int, wanted: Callable[[], bool]) -> None:
    """All bytes of a file, shared with it where the filesystem can. Raises OSError, CopyingEnded.

    What is cut off meanwhile is cut off in the copy: it will not have the digest.
    """
    with suppress(OSError):
        clone_file(target, source)
        return
    at, size = 0, os.fstat(source).st_size
    while at < size and (sent := os.sendfile(target, source, at, min(_PIECE, size - at))):
        if not wanted():
            raise CopyingEnded
        at += sent
