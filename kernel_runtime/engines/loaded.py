"""What a process that comes from the disk lacks, in words."""

from __future__ import annotations

import time
from typing import Any, Final

from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.timeline.model import Note

MONOTONIC: Final = "monotonic_ns"
"""Key of an image's details: its process's monotonic clock when it was written."""

_LOST: Final = {
    1: ("memory", "the program break was not put back: the heap grows elsewhere"),
    2: ("process", "/proc/self/exe is another program"),
}


def flag_notes(flags: int) -> list[Note]:
    """What the process says of itself: bits of enum tt_loaded_flags, native/image.h."""
    return [Note(*note) for bit, note in _LOST.items() if flags & bit]


def clock_inside_ns(sandbox: Sandbox) -> int:
    """The monotonic clock of the processes inside."""
    return time.monotonic_ns() + sandbox.clock_ahead_ns


def clock_notes(details: dict[str, Any], sandbox: Sandbox) -> list[Note]:
    """Where the monotonic clock is behind, who waits for a point in time waits longer."""
    behind_s = (details.get(MONOTONIC, 0) - clock_inside_ns(sandbox)) / 1e9
    if behind_s <= 0:
        return []
    text = f"is {behind_s:.0f} s behind (a reboot): what sleeps until a point in time wakes later"
    return [Note("clock", "monotonic", text)]
