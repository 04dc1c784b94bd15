"""How often what is random, or the same again, is done: TT_EXHAUSTIVE=1 does all of it."""

from __future__ import annotations

import os


def times(all_of_them: int, some: int) -> int:
    """The number of turns: in CI, which many tests share, some."""
    return all_of_them if os.environ.get("TT_EXHAUSTIVE") == "1" else some
