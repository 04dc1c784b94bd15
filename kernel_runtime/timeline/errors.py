"""What can be wrong with a change to the timeline. When one of these is raised, nothing changed."""

from __future__ import annotations

from kernel_runtime.errors import TimeTravelError


class DeleteRefused(TimeTravelError):
    """A checkpoint that is still needed was asked to be deleted."""

    def __init__(self, number: int, why: str, mend: str) -> None:
        super().__init__(f"Checkpoint #{number} was not deleted: {why}. It is still there. {mend}")
        self.number = number
