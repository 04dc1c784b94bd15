"""/etc/resolv.conf and /etc/hosts: they follow the machine, unless the session has its own.

A laptop moves to another network while a session runs. What the session has not touched it sees as
it is now; what it has changed itself is its own and stays, so a restore may bring back settings of
a network that is gone. That is said.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from typing import Final

from kernel_runtime.engines.overlay.stack import Found, Stack

FOLLOWED: Final = ("/etc/resolv.conf", "/etc/hosts")
_LINKS_MOST: Final = 10
_LARGEST: Final = 1 << 20
"""Bytes that are compared."""


def left_behind(views: Mapping[str, Stack], since_ns: int) -> list[str]:
    """Those that the session has as its own, where the machine's has become another meanwhile.

    since_ns: from when on, for what the session has deleted; a file of its own has its own time.
    """
    found = []
    for path in FOLLOWED:
        view, below = next(
            (
                (view, os.path.relpath(path, root))
                for root, view in views.items()
                if path.startswith(root.rstrip("/") + "/")
            ),
            (None, ""),
        )
        if view is None:
            continue
        with contextlib.suppress(OSError):
            own = view.lookup(os.fsencode(below))
            if own is not None and own.from_base:
                continue
            since = since_ns if own is None else own.stat.st_mtime_ns
            if any(st.st_ctime_ns > since for _, st in _chain(path)) and not _is_same(own, path):
                found.append(path)
    return found


def _chain(path: str) -> list[tuple[str, os.stat_result]]:
    """A file and all that it links to, as far as there is anything."""
    found = []
    with contextlib.suppress(OSError):
        for _ in range(_LINKS_MOST):
            st = os.lstat(path)
            found.append((path, st))
            if not stat.S_ISLNK(st.st_mode):
                break
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return found


def _is_same(own: Found | None, path: str) -> bool:
    if own is None or not stat.S_ISREG(own.stat.st_mode):
        return False
    with open(own.real, "rb") as ours, open(path, "rb") as machines:
        return ours.read(_LARGEST) == machines.read(_LARGEST)
