"""What a process that comes from the disk lacks, in words."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kernel_runtime.sandbox.base import Sandbox
from kernel_runtime.timeline.model import Checkpoint, Note

MONOTONIC: Final = "monotonic_ns"
"""Key of a capture's details: its process's monotonic clock when it was written to the disk."""

_LATEST_NS: Final = 100 * 365 * 24 * 3600 * 10**9
"""A clock that says more is none: no machine runs that long."""

_LOST: Final = {
    1: ("memory", "the program break was not put back: the heap grows elsewhere"),
    2: ("process", "/proc/self/exe is another program"),
    4: ("process", "the filters of seccomp(2) that the session had set are not set any more"),
    8: ("process", "its user, groups or capabilities are not all as they were"),
    16: ("memory", "not all policies of memory (mbind(2), set_mempolicy(2)) could be set again"),
    32: ("memory", "the tags of memory (Arm MTE) are not checked any more"),
}


def flag_notes(flags: int) -> list[Note]:
    """What the process says of itself: bits of enum tt_loaded_flags, native/image.h."""
    return [Note(*note) for bit, note in _LOST.items() if flags & bit]


def clock_inside_ns(sandbox: Sandbox) -> int:
    """The monotonic clock of the processes inside."""
    return time.monotonic_ns() + sandbox.clock_ahead_ns


def clock_of(details: Mapping[str, Any]) -> int:
    """What a capture's details say of that clock; 0 where they do not, or it can be none."""
    found = details.get(MONOTONIC)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _LATEST_NS:
        return 0
    return found


def clock_ahead_ns(checkpoints: Iterable[Checkpoint]) -> int:
    """By how much the clock inside must be ahead so that it is behind for none of them: the
    monotonic clock starts anew with the machine, and is another one on another machine."""
    held = (c for one in checkpoints for c in one.captures if c.state == "ready")
    return max(0, max((clock_of(c.details) for c in held), default=0) - time.monotonic_ns())


def behind_s(details: Mapping[str, Any], sandbox: Sandbox) -> float:
    """Seconds by which the clock inside is behind that of a capture; 0 if it is not."""
    return max(0, clock_of(details) - clock_inside_ns(sandbox)) / 1e9


def clock_notes(details: dict[str, Any], sandbox: Sandbox) -> list[Note]:
    """Where the monotonic clock is behind, who waits for a point in time waits longer."""
    behind = behind_s(details, sandbox)
    if not behind:
        return []
    text = f"is {behind:.0f} s behind (a reboot): what sleeps until a point in time wakes later"
    return [Note("clock", "monotonic", text)]
