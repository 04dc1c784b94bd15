"""What the tests of this directory share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def make_book(path: Path) -> Path:
    """An empty notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(empty))
    return path


def end(notebook: Any) -> None:
    """Shut a kernel down, its last checkpoint made."""
    notebook.head()
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel()


def on_disk(show: Callable[[], dict[str, Any]]) -> None:
    """Wait until the variables of the checkpoint that ``show`` tells of are on the disk."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        captures = show()["checkpoint"]["captures"]
        if any(one["kind"] == "namespace" and one["state"] == "ready" for one in captures):
            return
        time.sleep(0.1)
    raise AssertionError(captures)
