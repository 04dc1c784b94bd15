"""Into which directories the files of a snapshot may be put, when a notebook was moved."""

from __future__ import annotations

import os
from pathlib import Path

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceRestoreRefused
from kernel_runtime.store.notebooks import identity
from kernel_runtime.timeline.documents import Looks


def refuse_elsewhere(engine: WorkspaceEngine, snapshot_id: str, looks: Looks | None) -> None:
    """Raise WorkspaceRestoreRefused for files of a directory that is still there elsewhere."""
    for recorded, root in zip(engine.recorded_roots(snapshot_id), engine.roots):
        if not may_put_into(recorded, root, looks):
            why = (
                f"these are the files of {recorded}, which is still there, and the notebook is in "
                f"{root} now; move it back to have them, or restore memory only"
            )
            raise WorkspaceRestoreRefused([(os.fsencode(recorded), why)])


def may_put_into(recorded: Path, root: Path, looks: Looks | None) -> bool:
    """Whether files of a snapshot of one directory may be put into another.

    They may if it is the same directory, moved or not, or the recorded one is gone. Where both are
    there, the notebook alone was moved: the files of one project are not put over another's.
    """
    if os.path.realpath(recorded) == os.path.realpath(root) or not os.path.lexists(recorded):
        return True
    here = identity(root)
    if here is None or looks is None:
        return False
    return (os.path.realpath(recorded), *here) in looks.roots
