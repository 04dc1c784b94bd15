"""A timeline as it is taken up from its rows: what is missing is mended, what is over is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernel_runtime.timeline.model import VOLATILE_ENGINES, Capture, Checkpoint
from kernel_runtime.timeline.tree import TimelineState


def whole(
    state: TimelineState, checkpoints: Sequence[Checkpoint]
) -> tuple[TimelineState, list[Checkpoint]]:
    """A timeline that can be read although a checkpoint of it is gone: its children move up."""
    known: set[str] = set()
    found: list[Checkpoint] = []
    for checkpoint in checkpoints:
        if checkpoint.parent is not None and checkpoint.parent not in known:
            checkpoint = replace(checkpoint, parent=found[-1].id if found else None)
        found.append(checkpoint)
        known.add(checkpoint.id)
    newest = found[-1] if found else None
    if state.head is not None and state.head not in known:
        state = replace(state, head=newest.id if newest else None)
    if state.last_safety is not None and state.last_safety not in known:
        state = replace(state, last_safety=None)
    if newest is not None and newest.number >= state.next_number:
        state = replace(state, next_number=newest.number + 1)
    return state, found


def after_restart(capture: Capture, checkpoint: Checkpoint, epoch: str) -> Capture:
    """What is left of a capture when another supervisor than its own takes the timeline."""
    if checkpoint.coordinate.epoch == epoch:
        return capture
    if capture.engine in VOLATILE_ENGINES and capture.state in ("ready", "pending"):
        return replace(capture, state="evicted", bytes=0, error="the kernel was restarted")
    if capture.state == "pending":
        return replace(capture, state="failed", error="the kernel ended before it was ready")
    return capture
