"""Single files of a checkpoint brought into the present: all else stays, memory included."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import Part
from kernel_runtime.engines.workspace.names import from_printable, printable
from kernel_runtime.errors import BadRequest, RestoreFailed, RestoreRefused
from kernel_runtime.supervisor.request import Request
from kernel_runtime.timeline.model import Checkpoint
from kernel_runtime.timeline.report import title
from kernel_runtime.timeline.text import plural

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_SHOWN: Final = 4


async def bring_files(
    session: Session, target: Checkpoint, paths: Sequence[str], request: Request | None
) -> dict[str, Any]:
    """Bring files and directories of the workspace back as they were; what was not there goes.

    paths: absolute, or below the first directory of the workspace. The caller sees to it that no
    other cell runs. Raises BadRequest or RestoreRefused (nothing was done) or RestoreFailed (the
    files are as before).
    """
    if not paths:
        raise BadRequest("Name the paths that are to be brought. Nothing was changed.")
    capture = target.capture("filesystem", engine="workspace")
    if not session.files.enabled or capture is None or capture.ref is None:
        why = session.files.problem or (
            "they are layered with the environment, and come back as a whole: "
            f"%restore {target.number} --only files."
            if session.config.is_isolated
            else "they were not captured."
        )
        raise RestoreRefused(
            f"Single files of #{target.number} cannot be brought: {why} Nothing was changed."
        )
    only = chosen_paths(session, paths)
    async with session.lock:
        try:
            plan = await session.files.plan(capture.ref, Part(only))
        except (WorkspaceError, OSError) as error:
            raise RestoreRefused(str(error)) from error
        refused = [*plan.problems, *((one.path, one.reason) for one in plan.kept)]
        if refused:
            path, why = refused[0]
            raise RestoreRefused(
                f"{printable(path)} cannot be brought: {why}. Nothing was changed; choose others."
            )
        if not plan.changes:
            raise RestoreRefused(
                f"{', '.join(paths[:_SHOWN])}: nothing differs from #{target.number} there. "
                "Nothing was changed."
            )
        safety = await session.checkpoints.take(
            "safety",
            request=request,
            comment=f"before {', '.join(paths[:_SHOWN])} of #{target.number}",
            rules_of=plan.snapshot_id,
        )
        try:
            done = await session.files.restore(plan, safety.snapshot)
        except (WorkspaceError, OSError) as error:
            raise RestoreFailed(str(error)) from error
        if done.kept_aside_id is not None:
            session.restores.keep_aside(safety, done)
        await session.checkpoints.after_part(f"with files of #{target.number}", None)
    changes = [session.files.as_json(change) for change in plan.changes]
    record = session.timeline.record(target)
    shown = ", ".join(str(change["path"]) for change in changes[:_SHOWN])
    more = f" and {plural(len(changes) - _SHOWN, 'more')}" if len(changes) > _SHOWN else ""
    return {
        "checkpoint": record,
        "safety": session.timeline.record(safety.checkpoint),
        "names": [],
        "files": changes,
        "notices": [[printable(path), why] for path, why in done.warnings],
        "text": (
            f"{shown}{more} as {'it was' if len(changes) == 1 else 'they were'} at "
            f"{title(record)}; all else stays as it is (before: #{safety.checkpoint.number})"
        ),
    }


def chosen_paths(session: Session, paths: Sequence[str]) -> frozenset[tuple[int, bytes]]:
    """The paths as the workspace's engine names them. Raises BadRequest."""
    if not all(isinstance(path, str) for path in paths):
        raise BadRequest("paths must be a list of texts. Nothing was changed.")
    return frozenset(_placed(session, path) for path in paths)


def _placed(session: Session, path: str) -> tuple[int, bytes]:
    """The number of its root and the path below it. Raises BadRequest."""
    roots = [os.fsencode(root) for root in session.files.roots]
    name = from_printable(path)
    if b"\0" not in name and b".." not in name.split(b"/"):
        whole = os.path.normpath(os.path.join(roots[0], name))
        for number, root in enumerate(roots):
            if whole.startswith(root.rstrip(b"/") + b"/"):
                return number, os.path.relpath(whole, root)
    raise BadRequest(f"{path!r} is no path below the workspace. Nothing was changed.")
