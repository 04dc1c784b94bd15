"""Captures that hold the live tree of processes: those of engine ``criu`` that say how many."""

from __future__ import annotations

from typing import Final

from kernel_runtime.timeline.model import Capture, Checkpoint

NAME: Final = "criu"
CHILDREN: Final = "children"
"""Key of the details of a capture that holds child processes: how many."""


def holds_children(capture: Capture) -> bool:
    """Whether a capture is of the live tree, and is on the disk, or on its way there."""
    return (
        capture.engine == NAME
        and CHILDREN in capture.details
        and capture.state in ("pending", "ready")
    )


def tree_of(checkpoint: Checkpoint) -> Capture | None:
    """The capture of a checkpoint that holds its child processes, if it can be restored."""
    capture = checkpoint.capture("process", engine=NAME)
    if capture is None or not holds_children(capture) or capture.state != "ready":
        return None
    return capture


def has_tree(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has such a capture, or is about to have it."""
    capture = checkpoint.capture("process", engine=NAME)
    return capture is not None and holds_children(capture)
