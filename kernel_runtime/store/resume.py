"""With which checkpoint's memory a notebook's next kernel begins: said while none runs.

One small file for each timeline, ``<store>/resume/<timeline id>``, that the kernel takes away.
"""

from __future__ import annotations

import os
from pathlib import Path

from kernel_runtime.store.paths import private_directory


def note(store: Path, timeline_id: str, checkpoint_id: str) -> None:
    """Say it. Raises OSError."""
    directory = store / "resume"
    private_directory(directory)
    temporary = directory / f"{timeline_id}.new"
    temporary.write_text(checkpoint_id)
    os.replace(temporary, directory / timeline_id)


def take(store: Path, timeline_id: str) -> str | None:
    """What was said, which is forgotten by that; None if nothing was."""
    path = store / "resume" / timeline_id
    try:
        wanted = path.read_text()
        path.unlink()
    except OSError:
        return None
    return wanted
