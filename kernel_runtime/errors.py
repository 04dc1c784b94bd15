"""Every error that time travel raises on purpose.

The message says what failed, what holds, what to do.
"""

from __future__ import annotations


class TimeTravelError(Exception):
    """Base of all errors of this project; its name travels as ``ename`` in replies."""


class BadRequest(TimeTravelError):
    """A request that is not part of the protocol: nothing was done."""


class UnknownCheckpoint(TimeTravelError):
    """No checkpoint bears that name."""

    def __init__(self, spec: object, known: str = "") -> None:
        super().__init__(
            f"There is no checkpoint {spec!r}. {known or 'See %timeline for those that exist.'} "
            "Nothing was changed."
        )
        self.spec = spec


class CheckpointRefused(TimeTravelError):
    """A checkpoint could not be made; the session runs on, untouched."""


class RestoreRefused(TimeTravelError):
    """A restore was not begun; the session is as it was."""


class RestoreFailed(TimeTravelError):
    """A restore failed on the way; the session is back in the state before it."""


class EnvironmentRefused(TimeTravelError):
    """The environment (the files outside of the workspace) cannot be used as asked."""


class NotShown(TimeTravelError):
    """What was to be looked at cannot be shown; nothing was changed."""


class DocumentRefused(TimeTravelError):
    """A notebook's cells as they were cannot be kept, or read; nothing was changed."""


class SandboxError(TimeTravelError):
    """The sandbox cannot be set up or does not answer."""
