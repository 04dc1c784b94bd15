"""Waiting for what another process does a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which what does not come fails the test: only a hang takes that long."""


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition; what: said where it never comes."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what or condition
        time.sleep(0.02)
