"""What finding a session can end with."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class NoSuchKernel(TimeTravelError):
    """No running kernel with time travel is meant by that name, or several: nothing was done."""


class NotConfirmed(TimeTravelError):
    """The command asks before it goes on, and nobody said yes: nothing was done."""
