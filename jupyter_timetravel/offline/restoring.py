"""Putting a session's files to a checkpoint while no kernel runs.

Order: the safety checkpoint is in the store before anything changes; then the environment, which is
one file that is replaced; then the workspace, whose restore is journaled; then the head. Cut short
at any moment, what was there before is held, and the same command again finishes it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.differences import as_json
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.model import RestorePlan, RestoreResult, Snapshot
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.protect import DOCUMENT
from kernel_runtime.errors import RestoreFailed, RestoreRefused
from kernel_runtime.store import resume
from kernel_runtime.store.digests import BlobError
from kernel_runtime.timeline import Capture, Checkpoint, Coordinate, Note, new_id
from kernel_runtime.timeline.cells import Placed, effect_record, left_behind
from kernel_runtime.timeline.cells_report import effect_lines
from kernel_runtime.timeline.report import difference_lines, is_nothing, title

PARTIAL_WAY: Final = (
    " Where content in the store is damaged or gone, --partial brings all the rest and leaves "
    "those files as they are."
)


@dataclass
class _Done:
    """What was carried out."""

    text: str
    safety: Checkpoint | None = None
    warnings: list[str] = field(default_factory=list)
    kept_aside: list[dict[str, Any]] = field(default_factory=list)


def restored(
    session: Session, target: Checkpoint, *, dry_run: bool, partial: bool = False
) -> dict[str, Any]:
    """Carry it out, or tell what that would do; the restore result of docs/protocol.md.

    partial: files whose content is damaged or gone stay as they are, and are told.

    Raises RestoreRefused or RestoreFailed.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        overlay, environment = overlay_of(target), None
        if overlay is not None:
            environment = StoredEnvironment(session.environment)
        engine, plan = None, None
        ref = stored.snapshot_of(target)
        if ref is not None:
            engine = stack.enter_context(closing(stored.workspace_engine(session, ref)))
            if not dry_run:
                if environment is not None:
                    environment.state.end_cut_short(engine.was_committed)
                engine.recover()
            plan = _planned(engine, ref, target, partial)
        if environment is None and plan is None and not target.has_durable_session:
            raise RestoreRefused(
                f"#{target.number} holds no files, only memory, which ended with its kernel. "
                "Nothing was changed."
            )
        result = _differences(environment, overlay, engine, plan)
        head = session.timeline.head
        left = left_behind(session.timeline, head.id if head is not None else None, target.id)
        name = title(session.timeline.record(target))
        nothing = is_nothing(result) and (
            environment is None or overlay is None or environment.is_now(overlay)
        )
        if dry_run:
            lines = difference_lines(result) or ["  nothing"]
            done = _Done("\n".join([f"restoring the files of {name} would change:", *lines]))
        elif nothing:
            _move_head(session, target)
            done = _Done(f"the files are those of {name} already; the next kernel starts there")
        else:
            done = _carry_out(session, target, name, environment, overlay, engine, plan, result)
        return _result(session, target, result, left, done, dry_run, started)


def _planned(engine: WorkspaceEngine, ref: str, target: Checkpoint, partial: bool) -> RestorePlan:
    try:
        plan = engine.plan_restore(ref, allow_missing=partial)
    except (WorkspaceError, OSError) as error:
        raise RestoreRefused(str(error)) from error
    if plan.problems:
        path, why = plan.problems[0]
        raise RestoreRefused(
            f"The files of #{target.number} cannot be brought back: {printable(path)}: {why}. "
            f"Nothing was changed; remove the cause and try again.{'' if partial else PARTIAL_WAY}"
        )
    return plan


def _differences(
    environment: StoredEnvironment | None,
    overlay: Capture | None,
    engine: WorkspaceEngine | None,
    plan: RestorePlan | None,
) -> dict[str, Any]:
    result: dict[str, Any] = {"files": [], "environment": [], "packages": []}
    if engine is not None and plan is not None:
        result["files"] = [as_json(change, str(engine.roots[change.root])) for change in plan.done]
    if environment is not None and overlay is not None:
        gone = environment.missing(
            overlay.details.get("stacks", {}), str(overlay.details.get("root_layer", ""))
        )
        if gone:
            raise RestoreRefused(
                f"The environment cannot be brought back: its layer {gone[0]} is gone from the "
                "store. Nothing was changed."
            )
        found = environment.differences(environment.now(), environment.stacks_of(overlay))
        result["environment"], result["packages"] = found["files"], found["packages"]
        result["environment_complete"] = found["complete"]
    return result


def _carry_out(
    session: Session,
    target: Checkpoint,
    name: str,
    environment: StoredEnvironment | None,
    overlay: Capture | None,
    engine: WorkspaceEngine | None,
    plan: RestorePlan | None,
    result: dict[str, Any],
) -> _Done:
    told = environment.settle() if environment is not None else {}
    snapshot = engine.capture(rules_of=plan.snapshot_id) if engine and plan else None
    safety = _safety(session, target, environment, engine, snapshot)
    try:
        if environment is not None and overlay is not None:
            environment.put(overlay, follows=bool(engine and plan))
        followed = environment.workspace_followed if environment is not None else lambda: None
        done = (
            engine.restore(plan, foreign=snapshot, committed=followed) if engine and plan else None
        )
    except (WorkspaceError, OSError) as error:
        way = PARTIAL_WAY if isinstance(error.__cause__, BlobError) else ""
        raise RestoreFailed(
            f"The restore of {name} failed: {error}{way} What was there before is held by "
            f"#{safety.number}: jupyter timetravel restore {session.notebook} {safety.number}."
        ) from error
    if done is not None and done.kept_aside_id is not None:
        _keep_aside(session, safety, done)
    _move_head(session, target)
    warnings = [f"{path}: {why}" for path, why in sorted(told.items())]
    warnings += [f"{printable(path)}: {why}" for path, why in (done.warnings if done else ())]
    warnings += [
        f"{printable(one.path)} stays as it is: {one.reason}"
        for one in (done.kept if done else ())
        if one.reason != DOCUMENT
    ]
    lines = [f"restored the files of {name}:", *difference_lines(result)]
    lines += [f"warning: {text}" for text in warnings]
    lines.append(f"The next kernel starts there; #{safety.number} holds what was there before.")
    aside = [
        {"path": printable(one.path), "saved_as": done.kept_aside_id, "reason": one.reason}
        for one in (done.kept_aside if done else ())
        if done is not None
    ]
    return _Done("\n".join(lines), safety, warnings, aside)


def _result(
    session: Session,
    target: Checkpoint,
    differences: dict[str, Any],
    left: list[Placed],
    done: _Done,
    dry_run: bool,
    started: float,
) -> dict[str, Any]:
    timeline = session.timeline
    effects = [effect_record(effect, placed) for placed in left for effect in placed.cell.effects]
    return {
        "checkpoint": timeline.record(timeline[target.id]),
        "safety": None if done.safety is None else timeline.record(timeline[done.safety.id]),
        "dry_run": dry_run,
        "variables": {"added": [], "removed": [], "changed": []},
        "environ": [],
        "environment_complete": True,
        **differences,
        "kept_aside": done.kept_aside,
        "threads": {"brought_back": 0, "ids_kept": True},
        "process": None,
        "effects": effects,
        "compensations": [],
        "warnings": done.warnings,
        "took_ms": (time.monotonic() - started) * 1e3,
        "text": "\n".join([done.text, *effect_lines(effects)]),
    }


def _safety(
    session: Session,
    target: Checkpoint,
    environment: StoredEnvironment | None,
    engine: WorkspaceEngine | None,
    snapshot: Snapshot | None,
) -> Checkpoint:
    """A checkpoint of the files as they are, on the disk before this returns."""
    captures = []
    if snapshot is not None:
        left = [Note("file", printable(one.path), one.reason) for one in snapshot.left_out[:50]]
        captures.append(
            Capture(
                "filesystem", "workspace", "ready", bytes=snapshot.copied_bytes, ref=snapshot.id,
                not_captured=tuple(left),
            )
        )  # fmt: skip
    if environment is not None:
        captures.append(environment.present_capture())
    if engine is not None:
        engine.store.flush()
    made = session.timeline.add(
        created_at=datetime.now(timezone.utc),
        reason="safety",
        coordinate=Coordinate(new_id()),
        comment=f"before the restore of #{target.number}",
        captures=captures,
    )
    session.store.save(session.timeline.state, [made])
    return made


def _keep_aside(session: Session, safety: Checkpoint, done: RestoreResult) -> None:
    notes = tuple(Note("kept aside", printable(k.path), k.reason) for k in done.kept_aside)
    aside = Capture("filesystem", "kept-aside", "ready", ref=done.kept_aside_id, not_captured=notes)
    changed = session.timeline.set_capture(safety.id, aside)
    session.store.save(session.timeline.state, [changed])


def _move_head(session: Session, target: Checkpoint) -> None:
    session.timeline.move_head(target.id)
    session.store.save(session.timeline.state)
    if target.has_durable_session:
        resume.note(session.store.directory, session.info.id, target.id)
    else:  # what an earlier restore has said is not meant any more
        resume.take(session.store.directory, session.info.id)
