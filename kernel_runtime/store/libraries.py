"""Copies of the programs and libraries that CRIU's images refer to: each once for all of a store.

Layout below ``<store>/criu-libraries/`` (directory 0700, files 0600):

    <digest>    the file
    files       by which inode, size and times it is known that it has that digest (file_digests.py)

Written and deleted under the lock of the images (dumps.py). A copy **must** be on the disk before
an image that names it, and have its digest before something of it is mapped: it is code.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from kernel_runtime.store.file_digests import NAME, KeptDigests, digest_like, key_of
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.paths import private_directory, private_opener, sync
from kernel_runtime.store.reflinks import clone_file

FOLDER: Final = "criu-libraries"

_PIECE: Final = 64 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_SCRATCH: Final = "tmp-"


class Libraries:
    """The copies of one store. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self.digests = KeptDigests(self.path, keys)

    def keep(self, files: Sequence[tuple[int, str]]) -> None:
        """See that there is a copy of each of these files, with its digest; durable on return.

        Blocks. Raises OSError, also where one does not have the digest (any more); StoreError.
        """
        wanted = {digest: fd for fd, digest in files}
        missing = [(fd, digest) for digest, fd in wanted.items() if not self._is_there(digest)]
        if not missing:
            return
        private_directory(self.path)
        made: list[tuple[Path, str]] = []
        try:
            for fd, digest in missing:
                scratch = self.path / f"{_SCRATCH}{secrets.token_hex(8)}"
                made.append((scratch, digest))
                with open(scratch, "xb", opener=private_opener) as copy:
                    _copy(fd, copy.fileno())
            for scratch, digest in made:  # all are written by now: the first one waits for most
                sync(scratch)
                os.rename(scratch, self.path / digest)
            sync(self.path)
        finally:
            for scratch, _ in made:
                scratch.unlink(missing_ok=True)
        for _, digest in missing:
            if not self._is_there(digest):
                raise OSError(errno.ESTALE, "a library changed while it was copied")
        self.digests.save()

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


def _copy(source: int, target: int) -> None:
    """All bytes of a file, shared with it where the filesystem can. Raises OSError."""
    with suppress(OSError):
        clone_file(target, source)
        return
    at, size = 0, os.fstat(source).st_size
    while at < size:
        sent = os.sendfile(target, source, at, min(_PIECE, size - at))
        if not sent:
            raise OSError(errno.ESTALE, "a library was cut off while it was copied")
        at += sent
