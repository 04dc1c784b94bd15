"""All errors of the workspace engine. Each says what failed, what still works, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import TimeTravelError


class WorkspaceError(TimeTravelError):
    """Base of all errors of the workspace engine."""


class WorkspaceUnsupported(WorkspaceError):
    """The engine was asked for on a platform other than Linux."""

    def __init__(self, system: str) -> None:
        super().__init__(
            f"The workspace cannot be captured on {system}: the engine needs Linux. Variables "
            "can still be checkpointed. Run the kernel on Linux to have files too."
        )


class SnapshotUnknown(WorkspaceError):
    """A snapshot's manifest is not in the store, or cannot be understood."""

    def __init__(self, snapshot_id: str, cause: str) -> None:
        super().__init__(
            f"Workspace snapshot {snapshot_id[:12]} cannot be read: {cause}. Nothing was changed; "
            "other snapshots are not affected. Choose another checkpoint."
        )
        self.snapshot_id = snapshot_id


def _end(cause: str) -> str:
    """As a sentence."""
    return cause if cause.endswith(".") else f"{cause}."


class WorkspaceCaptureFailed(WorkspaceError):
    """The workspace could not be captured at all; single bad paths never cause this."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The workspace could not be captured: {_end(cause)} Files are as they were, and so "
            "are earlier snapshots. Remove the cause and checkpoint again."
        )


class WorkspaceRestoreRefused(WorkspaceError):
    """A restore that cannot succeed, as found out before anything was changed."""

    def __init__(self, problems: Sequence[tuple[bytes, str]]) -> None:
        shown = "; ".join(f"{printable(path)}: {reason}" for path, reason in problems[:5])
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        super().__init__(
            f"The workspace was not restored: {_end(shown + more)} Nothing was changed. "
            "Remove the cause and restore again."
        )
        self.problems = tuple(problems)


class WorkspaceRestoreFailed(WorkspaceError):
    """A restore that failed while it was at work. The message says what the tree is now."""

    def __init__(self, path: bytes, cause: str, *, undone: bool) -> None:
        state = (
            "Everything was put back as it was before"
            if undone
            else "It could not be undone completely; the journal is kept, and the next start "
            "(or recover()) goes on undoing it"
        )
        super().__init__(
            f"The workspace was not restored: {printable(path)}: {_end(cause)} {state}. "
            "Remove the cause and restore again."
        )
        self.path, self.cause, self.undone = path, cause, undone
