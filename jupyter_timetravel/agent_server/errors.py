"""What a call of an agent can end with, beside the errors of time travel itself."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class KernelBusy(TimeTravelError):
    """A cell runs and did not end within the time limit: nothing was sent to the kernel."""


class KernelNotStarted(TimeTravelError):
    """A kernel could not be started for a notebook, or is not ours to end: nothing was changed."""


class UnknownCell(TimeTravelError):
    """No cell of that id was run through this server: nothing was done."""
