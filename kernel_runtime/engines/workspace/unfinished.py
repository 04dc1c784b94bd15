"""Whether restores may have been cut short: told without importing the engine, which takes long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

JOURNAL: Final = "restore-"
"""Begins the names of the journals of restores; other files lie beside them."""


def may_be_unfinished(directory: Path) -> bool:
    """Whether there are journals of restores in a directory, which need not be there.

    Raises OSError.
    """
    try:
        return any(name.startswith(JOURNAL) for name in os.listdir(directory))
    except FileNotFoundError:
        return False
