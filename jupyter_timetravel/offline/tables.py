"""Columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from kernel_runtime.timeline.text import columns, pad


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their heads, as wide as they must be."""
    widths = [max(map(columns, column)) for column in zip(head, *rows)]
    lines = ["  ".join(map(pad, row, widths)).rstrip() for row in (head, *rows)]
    return "\n".join(lines)


def age_text(moment: datetime, now: datetime | None = None) -> str:
    """``3 h``, ``12 d``: how long ago it was."""
    seconds = ((now or datetime.now(timezone.utc)) - moment).total_seconds()
    for limit, length, unit in ((3600, 60, "min"), (2 * 86_400, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // length))} {unit}"
    return f"{int(seconds // 86_400)} d"
