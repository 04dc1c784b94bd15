"""Small timelines: times and ids are fixed, so that a failure reads the same each time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kernel_runtime.timeline import Checkpoint, Coordinate, Timeline, TimelineState

START = datetime(2025, 1, 31, 12, 0, tzinfo=timezone.utc)
Add = Callable[..., Checkpoint]


def _add(timeline: Timeline, **changes: Any) -> Checkpoint:
    number = timeline.state.next_number
    given: dict[str, Any] = {
        "created_at": START + timedelta(seconds=number),
        "reason": "cell",
        "coordinate": Coordinate("epoch", 1, number),
        "id": f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}{number:016x}",
    }
    return timeline.add(**{**given, **changes})


@pytest.fixture(scope="session")
def add() -> Add:
    """Add a checkpoint to a timeline: ``add(timeline, comment="x")``."""
    return _add


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(TimelineState("t" * 32))
