"""How far long work is: counted by whoever works, shown by `command_line.progress`.

No I/O. Thread safe: what counts may run in several threads, and what shows in another.
"""

from __future__ import annotations

import threading
from typing import Final, Literal

from kernel_runtime.timeline.text import size_text

Unit = Literal["bytes", "objects", "sessions", "pieces"]

BAR: Final = 20
"""Characters of a bar."""


class Meter:
    """One piece of work after the other; of each what it is, and how much of it is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what, self._unit = "", "bytes"
        self._done = self._total = 0

    def begin(self, what: str, total: int, unit: Unit = "bytes") -> None:
        """Work of so much begins, in place of what was counted before. what: ``unpacking``."""
        with self._lock:
            self._what, self._unit = what, unit
            self._done, self._total = 0, total

    def advance(self, by: int = 1) -> None:
        """So much more of it is done."""
        with self._lock:
            self._done += by

    def text(self) -> str:
        """``unpacking [########............] 40%, 1.2 GB of 3.0 GB``, or nothing as yet."""
        with self._lock:
            what, unit, done, total = self._what, self._unit, self._done, self._total
        if not what:
            return ""
        if total <= 0:
            return what
        done = min(done, total)  # a file may have grown since it was counted
        full = done * BAR // total
        bar = "#" * full + "." * (BAR - full)
        if unit == "bytes":
            amount = f"{size_text(done)} of {size_text(total)}"
        else:
            amount = f"{done:,} of {total:,} {unit}"
        return f"{what} [{bar}] {done * 100 // total}%, {amount}"
