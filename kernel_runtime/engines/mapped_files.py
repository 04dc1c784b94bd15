"""The files that images refer to by their paths: what is in them, and whether it still is."""

from __future__ import annotations

import errno
import os
import time

from kernel_runtime.engines.workspace.filesystems import trust_of
from kernel_runtime.engines.workspace.state import vouches
from kernel_runtime.store.file_digests import (
    SETTLED_NS,
    KeptDigests,
    Key,
    digest_like,
    digest_of_file,
    key_of,
)
from kernel_runtime.store.image_model import FileInUse, ImageUnusable, OpenImage


class FileDigests:
    """Digests of the files that images refer to, each read once as long as it is the same."""

    def __init__(self, kept: KeptDigests | None = None) -> None:
        """kept: those that other kernels have read."""
        self._known: dict[FileInUse, str] = {}
        self._kept = kept

    def at(self, root: str) -> _FilesBelow:
        """For files below that directory."""
        return _FilesBelow(self, root)

    def digest(self, used: FileInUse, root: str) -> str:
        """The digest of a file. Raises OSError, also where it is not the same any more."""
        with open(root + used.path, "rb") as file:
            return self.of(used, file.fileno())

    def of(self, used: FileInUse, fd: int) -> str:
        """Likewise, of a file that is open."""
        known = self._known.get(used)
        _see(used, fd)
        if known is None:
            known = self._read(used, fd)
            _see(used, fd)
        self._known[used] = known
        return known

    def _read(self, used: FileInUse, fd: int) -> str:
        key = known_by(used, os.fstat(fd)) if self._kept is not None else None
        if self._kept is None or key is None:
            return digest_of_file(fd)
        known = self._kept.get(key)
        if known is None:
            known = digest_of_file(fd)
            self._kept.add(key, known)
        return known

    def save(self) -> None:
        """Keep what was read for other kernels. Never raises."""
        if self._kept is not None:
            self._kept.save()

    def check(self, image: OpenImage, root: str) -> None:
        """Raises ImageUnusable, naming the first file that is not what it was."""
        for used in image.files:
            try:
                with open(root + used.path, "rb") as file:
                    if used.is_same(os.fstat(file.fileno())):
                        continue
                    same = digest_like(file.fileno(), used.digest) == used.digest
            except OSError as error:
                cause = f"{used.path}, which it uses, cannot be read: {error.strerror}"
                raise ImageUnusable(image.ref, cause) from error
            if not same:
                raise ImageUnusable(image.ref, f"{used.path}, which it uses, was replaced since")


class _FilesBelow:
    def __init__(self, digests: FileDigests, root: str) -> None:
        self._digests = digests
        self._root = root

    def __call__(self, used: FileInUse) -> str:
        return self._digests.digest(used, self._root)


def known_by(used: FileInUse, found: os.stat_result) -> Key | None:
    """What a file is known by to all kernels of this machine; None where nothing proves it.

    found: of the file as the session sees it. An overlay has another device each time, so it is
    known by the host's file of that path, if the session has not changed it.
    """
    now_ns, mono_ns = time.time_ns(), time.monotonic_ns()
    if used.ctime_ns >= now_ns - SETTLED_NS:
        return None
    try:
        fd = os.open(used.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        host = os.fstat(fd)
        trust = trust_of(fd)
    finally:
        os.close(fd)
    if not used.is_same(host) or host.st_ino != found.st_ino:
        return None
    # a page of tmpfs that is mapped is written to without a change of times
    if trust.name == "tmpfs" or not vouches(trust, host.st_ctime_ns, mono_ns, now_ns, mono_ns):
        return None
    return key_of(host)


def _see(used: FileInUse, fd: int) -> None:
    if not used.is_same(os.fstat(fd)):
        raise OSError(errno.ESTALE, f"{used.path} changed meanwhile")
