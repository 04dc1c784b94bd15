"""The directory of one kernel's sockets: its own, and gone when the kernel is, however it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_runtime_dir

from kernel_runtime.process_names import is_alive, this_process
from kernel_runtime.store.paths import private_directory, private_opener

SOCKET_PATH_LIMIT: Final = 107
"""Bytes of a Unix socket's path, without the final NUL (unix(7))."""
SOCKET_NAME_LENGTH: Final = 40
"""Bytes that a socket's own name may take in a runtime directory."""
_PREFIX: Final = "timetravel-k-"
_OWNER: Final = "owner"
_STRANGER_S: Final = 30 * 86400.0
"""Seconds after which one is deleted whose kernel cannot be looked for: it ran before this machine
was started, or in another container, or on another machine with the same home."""


def runtime_directory() -> Path:
    """Make it, mode 0700, and return it; delete those that killed kernels have left beside it.

    It lies in Jupyter's runtime directory; where a socket's path would get too long there, in
    the directory for temporary files. It is no other kernel's, not even of the one that was
    restarted with the same connection file. The caller removes it at the end. Raises StoreError.
    """
    name = f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    places = [Path(place).absolute() for place in (jupyter_runtime_dir(), tempfile.gettempdir())]
    places = [place for place in places if _leaves_room(place / name)] or [Path("/tmp")]
    path = places[0] / name
    private_directory(path)
    with open(path / _OWNER, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(f"{_here()} {this_process()}")
    _sweep(places[0])
    return path


def _leaves_room(path: Path) -> bool:
    return len(os.fsencode(path)) + 1 + SOCKET_NAME_LENGTH <= SOCKET_PATH_LIMIT


def _here() -> str:
    """Where a pid means the same: a pid namespace; the name of a process has the boot."""
    return os.readlink("/proc/self/ns/pid")


def _sweep(place: Path) -> None:
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and _is_left(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path) -> bool:
    """Raises OSError: it is being made, or being deleted."""
    where, _, owner = (path / _OWNER).read_text("utf-8").partition(" ")
    if where == _here() and owner.rpartition(":")[2] == this_process().rpartition(":")[2]:
        return not is_alive(owner)
    return time.time() - path.stat().st_mtime > _STRANGER_S
