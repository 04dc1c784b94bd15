"""Whether a tree is as it was, for tests."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from kernel_runtime.engines.overlay.paths import Shortener, join

AnyPath = str | bytes | Path


def signature(source: AnyPath) -> str:
    """What tells cheaply whether a tree was changed: a hash of all that lstat(2) says.

    Equal means unchanged, up to writing through a shared mapping, which the kernel notes late.
    Making or removing hard links to its files changes it (ctime), a merge for one. Raises OSError.
    """
    digest = hashlib.blake2b(digest_size=20)
    short = Shortener()
    try:
        todo = [(b"", os.fsencode(source))]
        while todo:
            path, real = todo.pop()
            found = os.lstat(real)
            digest.update(
                b"%d\0%s\0%d %d %d %d %d %d %d %d\n"
                % (
                    len(path), path, found.st_ino, found.st_mode, found.st_uid, found.st_gid,
                    found.st_rdev, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
                )
            )  # fmt: skip
            if stat.S_ISDIR(found.st_mode):
                real = short(real)
                names = sorted(os.listdir(real), reverse=True)
                todo += [(join(path, name), real + b"/" + name) for name in names]
    finally:
        short.close()
    return digest.hexdigest()
