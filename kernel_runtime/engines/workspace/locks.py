"""Engines that share a directory take turns: a capture never sees half a restore.

The lock is flock(2) on the directory itself, so nothing is written into it. Where the
filesystem has no such locks, engines go on without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.errors import WorkspaceRestoreRefused

_WAIT_S: Final = 15.0
_PAUSE_S: Final = 0.02


@contextlib.contextmanager
def locked_roots(roots: Sequence[Path], *, exclusive: bool) -> Iterator[None]:
    """Hold all roots, shared for a capture, exclusive for a restore.

    After 15 s a capture goes on without the lock; a restore raises WorkspaceRestoreRefused.
    """
    import fcntl  # not on Windows, where this module must import too

    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with contextlib.ExitStack() as stack:
        for root in roots:
            try:
                fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            stack.callback(os.close, fd)
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                    break
                except OSError as cause:
                    if cause.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                        break
                    if time.monotonic() > deadline:
                        if exclusive:
                            raise WorkspaceRestoreRefused(
                                [(os.fsencode(root), "another session is at work in it")]
                            ) from cause
                        break
                time.sleep(_PAUSE_S)
        yield
