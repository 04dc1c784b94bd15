"""Snapshots of the notebook's directory, and journaled restores in place."""

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import (
    SnapshotUnknown,
    WorkspaceCaptureFailed,
    WorkspaceError,
    WorkspaceRestoreFailed,
    WorkspaceRestoreRefused,
    WorkspaceUnsupported,
)
from kernel_runtime.engines.workspace.model import (
    Change,
    LeftOut,
    RecoverResult,
    RestorePlan,
    RestoreResult,
    Snapshot,
    SnapshotId,
)
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.rules import DEFAULT_EXCLUDES

__all__ = [
    "DEFAULT_EXCLUDES",
    "Change",
    "LeftOut",
    "RecoverResult",
    "RestorePlan",
    "RestoreResult",
    "Snapshot",
    "SnapshotId",
    "SnapshotUnknown",
    "WorkspaceCaptureFailed",
    "WorkspaceEngine",
    "WorkspaceError",
    "WorkspaceRestoreFailed",
    "WorkspaceRestoreRefused",
    "WorkspaceUnsupported",
    "printable",
]
