"""The timeline: the tree of checkpoints of one session, and all decisions about it.

Pure: no I/O, and no clock but the times that are passed in.
"""

from kernel_runtime.timeline.errors import DeleteRefused
from kernel_runtime.timeline.model import (
    Capture,
    CaptureKind,
    CaptureState,
    Checkpoint,
    Coordinate,
    Note,
    Reason,
    Summary,
    from_record,
    new_id,
    record,
)
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.tree import AT_HEAD, Deleted, Timeline, TimelineState

__all__ = [
    "AT_HEAD",
    "Capture",
    "CaptureKind",
    "CaptureState",
    "Checkpoint",
    "Coordinate",
    "DeleteRefused",
    "Deleted",
    "Note",
    "Reason",
    "Spec",
    "Summary",
    "Timeline",
    "TimelineState",
    "from_record",
    "new_id",
    "record",
]
