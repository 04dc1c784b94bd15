"""Whether the host's files have changed beneath the layers of an environment.

A layer holds differences only, so it is whole only together with a base that nobody has promised
to keep. What is compared: the entries of every directory that the layers touch, and the places
where package managers keep their books, by the time of their last change (ctime, stat(2)).
"""

from __future__ import annotations

import glob
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kernel_runtime.engines.overlay.changes import touched
from kernel_runtime.engines.overlay.stack import Stack

MOST: Final = 50
_SECONDS: Final = 1.0
_SLACK_NS: Final = 20_000_000
"""A file's time is that of the last tick of the kernel's clock."""

_NOISE: Final = frozenset(
    {"__pycache__", ".cache", ".ipython", ".jupyter", ".local", ".bash_history", ".python_history"}
)
"""What changes all the time and means nothing."""

_NOISY_PLACES: Final = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")
"""Variables that say where such directories are: the supervisor itself writes IPython's history."""

_BOOKS: Final = (
    "/var/lib/dpkg/status",
    "/var/lib/rpm",
    "/lib/apk/db/installed",
)


def host_changes(
    views: Mapping[str, Stack], since_ns: int, *, prefixes: Iterable[str] = ()
) -> list[str]:
    """Paths of the host that changed since a moment, at most MOST; looks for a second at most.

    prefixes: Python environments whose site-packages are looked at too.
    """
    end = time.monotonic() + _SECONDS
    after = since_ns + _SLACK_NS
    found: list[str] = []
    home = os.path.expanduser("~")
    noisy = [os.path.join(os.path.realpath(p), "") for p in map(os.environ.get, _NOISY_PLACES) if p]
    for path in [*_books(prefixes), *_touched_directories(views, end)]:
        if os.path.join(os.path.realpath(path), "").startswith(tuple(noisy)):
            continue
        if path == home or home.startswith(path.rstrip("/") + "/"):
            continue  # every program of the user's writes there, and other users' come and go
        if len(found) >= MOST or time.monotonic() > end:
            break
        for one in _changed_in(path, after):
            if one not in found:
                found.append(one)
    return found[:MOST]


def _books(prefixes: Iterable[str]) -> list[str]:
    found = [path for path in _BOOKS if os.path.exists(path)]
    for prefix in prefixes:
        found += glob.glob(f"{glob.escape(prefix)}/lib/python3*/site-packages")
        found += glob.glob(f"{glob.escape(prefix)}/conda-meta")
    return found


def _touched_directories(views: Mapping[str, Stack], end: float) -> Iterable[str]:
    """Directories of the host that some layer has an entry in."""
    for root, view in views.items():
        seen: set[bytes] = set()
        for layer in view.layers:
            for entry in touched(Path(layer), view.markers):
                seen.add(entry.path.rpartition(b"/")[0])
                if len(seen) > 5000 or time.monotonic() > end:
                    break
        for path in sorted(seen):
            if not _NOISE.isdisjoint(os.fsdecode(path).split("/")) and b"site-packages" not in path:
                continue
            yield os.path.join(root, os.fsdecode(path)) if path else root


def _changed_in(path: str, after_ns: int) -> list[str]:
    try:
        found = os.lstat(path)
    except OSError:
        return []
    if not os.path.isdir(path):
        return [path] if found.st_ctime_ns > after_ns else []
    if found.st_mode & stat.S_ISVTX:
        return []  # of everybody: what comes and goes there means nothing
    changed = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name in _NOISE:
                    continue
                st = entry.stat(follow_symlinks=False)
                if st.st_ctime_ns > after_ns:
                    changed.append(entry.path)
    except OSError:
        return []
    if found.st_mtime_ns > after_ns:
        changed.append(path)  # something was made in it, or is gone
    return changed
