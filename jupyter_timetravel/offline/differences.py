"""What happened between two stored checkpoints, or from one to the files as they are now."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.engines.workspace.model import Change
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.variables import diff as diff_variables
from kernel_runtime.timeline.variables import diff_environ


def compared(session: Session, first: Checkpoint, second: Checkpoint | None) -> dict[str, Any]:
    """As docs/protocol.md has a diff; without second the present files, and no variables."""
    result: dict[str, Any] = {
        "variables": {"added": [], "removed": [], "changed": []},
        "environ": [],
        "files": _workspace(session, first, second),
        "environment": [],
        "environment_complete": True,
        "packages": [],
    }
    if second is not None:
        result["variables"] = dict(diff_variables(first.variables, second.variables))
        result["environ"] = diff_environ(first.variables, second.variables)
    before, after = overlay_of(first), overlay_of(second) if second is not None else None
    if before is not None and (second is None or after is not None):
        try:
            environment = StoredEnvironment(session.environment)
            now = environment.now() if after is None else environment.stacks_of(after)
            found = environment.differences(environment.stacks_of(before), now)
        except OSError as error:
            raise EnvironmentRefused(f"The environments cannot be compared: {error}") from error
        result["environment"], result["packages"] = found["files"], found["packages"]
        result["environment_complete"] = found["complete"]
    return result


def _workspace(
    session: Session, first: Checkpoint, second: Checkpoint | None
) -> list[dict[str, Any]]:
    refs = stored.snapshot_of(first), stored.snapshot_of(second)
    if refs[0] is None or (second is not None and refs[1] is None):
        return []
    with closing(stored.workspace_engine(session, refs[0])) as engine:
        found = (
            engine.current_changes(refs[0]) if refs[1] is None else engine.diff(refs[0], refs[1])
        )
        return [as_json(change, str(engine.roots[change.root])) for change in found]


def as_json(change: Change, root: str) -> dict[str, Any]:
    """A change of the workspace as docs/protocol.md has it."""
    return {
        "path": printable(change.path),
        "root": root,
        "kind": change.kind,
        "size_before": change.size_before,
        "size_after": change.size_after,
    }
