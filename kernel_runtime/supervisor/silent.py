"""Mounts that do not answer (a file server that is gone): whoever touches one waits for ever."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from kernel_runtime.engines.overlay.plan import read_mounts, within

_ANSWER_S = 1.0


def silent_mounts(roots: Iterable[Path]) -> list[str]:
    """Return the remote mounts at or below directories that do not answer within a second."""
    tops = [str(root) for root in roots]
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    remote = [mount.path for mount in read_mounts(text) if mount.why_not]
    asked = {path for path in remote if any(within(path, top) for top in tops)}
    answered: set[str] = set()
    # daemons: one that waits for ever must not keep this process
    threads = [threading.Thread(target=_ask, args=(p, answered), daemon=True) for p in asked]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _ANSWER_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return sorted(asked - answered)


def _ask(path: str, answered: set[str]) -> None:
    with contextlib.suppress(OSError):
        os.statvfs(path)
    answered.add(path)
