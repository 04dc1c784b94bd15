"""What ``%load_ext jupyter_timetravel`` gives in an ordinary kernel or an IPython terminal.

Files, on request: ``%checkpoint`` captures the directory that the extension was loaded in, and
``%restore N --only files`` brings it back. Memory is out of reach there: it takes a supervisor
outside the process, so the magics name the kernel that has one.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_timetravel.magics import TimeTravelMagics
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.store.paths import store_directory

_loaded: list[Any] = []
"""The files that an earlier load captures; loading again begins anew in the present directory."""


def load(shell: InteractiveShell) -> None:
    """Register the magics. Where files cannot be captured either, each magic says why."""
    from jupyter_timetravel.files_only import KERNEL_TO_START

    document = os.environ.get("JPY_SESSION_NAME", "")
    notebook = document if document.endswith(".ipynb") and os.path.exists(document) else None
    link: Any
    try:
        link = _files_only(Path.cwd(), notebook)
        print(f"time travel for the files in {Path.cwd()}: %checkpoint, %restore N --only files")
    except (TimeTravelError, OSError) as error:
        link = _Nothing(f"{error}\n{KERNEL_TO_START}")
        print(f"no time travel here: {error}")
    print(KERNEL_TO_START)
    TimeTravelMagics(shell, link).register()


def _files_only(root: Path, notebook: str | None) -> Any:
    from jupyter_timetravel.files_only import FilesOnly

    while _loaded:
        files = _loaded.pop()
        atexit.unregister(files.close)
        files.close()
    files = FilesOnly(root, store_directory(), key=notebook)
    _loaded.append(files)
    atexit.register(files.close)
    return files


class _Nothing:
    """Answers every command with the reason why there is nothing."""

    def __init__(self, why: str) -> None:
        self._why = why

    def request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        """Raise TimeTravelError."""
        raise TimeTravelError(self._why)
