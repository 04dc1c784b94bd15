"""What a check of ``jupyter timetravel doctor`` is, and what it finds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

FINE, LIMITED, FAULTY, MISSING, SKIPPED = "fine", "limited", "faulty", "missing", "skipped"
"""faulty: installed or set up only in part; not a limit of the machine."""


class Finding(NamedTuple):
    """What a check found, and the mend: a command to run or a thing to change."""

    state: str
    text: str
    mend: str = ""


class Check(NamedTuple):
    """One row of the table. ``purpose`` says what it is good for."""

    name: str
    purpose: str
    run: Callable[[], Finding]


def is_linux() -> bool:
    return sys.platform.startswith("linux")
