"""How often what is random, or the same again, is done: TT_EXHAUSTIVE=1 does all of it."""

from __future__ import annotations

import os
from typing import Any

import pytest


def times(all_of_them: int, some: int) -> int:
    """The number of turns: in CI, which many tests share, some."""
    return all_of_them if os.environ.get("TT_EXHAUSTIVE") == "1" else some


def more(*values: Any) -> list[Any]:
    """Of a parametrization, the values that CI leaves out: those before show the same fault."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=pytest.mark.exhaustive) for value in each]
