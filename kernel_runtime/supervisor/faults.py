"""Numbered places where tests make a restore fail, or end the supervisor.

``TIMETRAVEL_FAULT=name`` raises InjectedFault there, ``name:kill`` sends SIGKILL to this process.
A name is used up by its first hit.
"""

from __future__ import annotations

import os
import signal

_armed = os.environ.get("TIMETRAVEL_FAULT", "")


class InjectedFault(Exception):
    """A failure that a test asked for."""


def point(name: str) -> None:
    """Fail here if a test asked for it."""
    global _armed
    wanted, _, how = _armed.partition(":")
    if wanted != name:
        return
    _armed = ""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedFault(f"injected at {name!r}")
