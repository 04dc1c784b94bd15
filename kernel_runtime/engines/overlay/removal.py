"""Deleting layers. Standard library only: init does it too."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path


def remove_tree(path: Path) -> None:
    """rmtree that opens directories that their owner has closed (chmod 0)."""

    def open_up(directory: str) -> None:
        with contextlib.suppress(OSError):
            mode = os.lstat(directory).st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                os.chmod(directory, 0o700)

    open_up(str(path))
    for parent, names, _ in os.walk(path, onerror=None):
        for name in names:
            open_up(f"{parent}/{name}")
    shutil.rmtree(path)
