"""``jupyter timetravel prune``: give room back that old checkpoints and dead sessions take.

Order for each session: merged layers are on the disk before the state and the database name them,
and both do before the old ones are deleted. Cut short at any moment, no checkpoint that is kept
loses anything, and the next run finishes it.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.containers.commits import forget_gone
from jupyter_timetravel.exchange.taking import left_over
from jupyter_timetravel.offline import rules, stored, usage
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.rules import Report, Wanted
from jupyter_timetravel.offline.stored import Session, SessionInUse
from kernel_runtime.engines.charges import Needs, Stores, room_of
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.engines.overlay.removal import remove_tree
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.errors import BadRequest, EnvironmentRefused
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import (
    Capture,
    Checkpoint,
    DeleteRefused,
    Timeline,
    TimelineState,
)
from kernel_runtime.timeline.cells import along
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "delete old checkpoints, and layers and files that nothing needs any more"

_PIN_S = 3600
"""Seconds after which a snapshot that no checkpoint names is not one in the making."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser, optional=True)
    stored.add_store(parser)
    rules.add_arguments(parser)
    parser.add_argument(
        "--session", action="store_true", help="the whole session of NOTEBOOK, environment too"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be freed")


def run(args: argparse.Namespace) -> int:
    """Delete. Raises SessionInUse for a notebook that was named; others in use are left alone."""
    if args.session and args.notebook is None:
        raise BadRequest("--session deletes a whole session: name its NOTEBOOK. Nothing was done.")
    wanted = Wanted(rules.of(args), args.all, datetime.now(timezone.utc))
    report = Report(args.dry_run)
    with stored.opened(args) as store, Progress(args) as progress:
        infos = [stored.find(store, args)] if args.notebook else store.timelines()
        if wanted.rules.budget_bytes is not None:
            infos = _weigh(store, infos, wanted)
        released: set[str] = set()
        progress.meter.begin("pruning", len(infos), "sessions")
        for info in infos:
            released |= _one(store, info, args, wanted, report)
            progress.meter.advance()
        progress.meter.begin("sweeping", 0)
        if args.notebook is None:
            _left_over(store, report)
        _sweep(store, released, report)
        if wanted.excess > 0:
            report.lines.append(
                f"What is left takes {size_text(wanted.excess)} more than the budget: it was asked "
                "for, labelled or pinned, or is in use. See `jupyter timetravel du`; --all deletes "
                "it too."
            )
    tell(
        args,
        report.text(),
        {"dry_run": report.dry_run, "freed_bytes": report.freed, "text": report.text()},
    )
    return 0


def _weigh(store: Store, infos: list[TimelineInfo], wanted: Wanted) -> list[TimelineInfo]:
    """Find out what each checkpoint takes; returns the sessions, the least used first."""
    stores, known = Stores(store.directory), Needs()
    order = sorted(store.timelines(), key=lambda info: usage.last_used(store, info))
    for info in reversed(order):
        charges = usage.charges(store, stores, info, known)
        wanted.charges[info.id] = charges
        wanted.excess += sum(charges.values())
    wanted.excess -= wanted.rules.budget_bytes or 0
    chosen = {info.id for info in infos}
    return [info for info in order if info.id in chosen]


def _one(
    store: Store, info: TimelineInfo, args: argparse.Namespace, wanted: Wanted, report: Report
) -> set[str]:
    """Prune one session; returns the snapshots that its deleted checkpoints had named."""
    name = one_line(stored.name_of(info), 200)
    if args.session:
        return _whole(store, info, name, report)
    if info.path is None and not info.in_use:
        if stored.is_aside(info) or info.origin is not None:
            if args.notebook is not None:
                report.add(f"{name}: belongs to no notebook now; --session deletes it as a whole")
            return set()
        return _whole(store, info, name, report)  # nobody can find it again
    try:
        if report.dry_run and info.in_use:
            raise SessionInUse("")
        session = stored.look(store, info) if report.dry_run else stored.take(store, info)
    except SessionInUse:
        if args.notebook is not None and not report.dry_run:
            raise
        report.add(f"{name}: in use, left alone")
        return set()
    gone = wanted.of(session.timeline, name, report)
    if gone:
        report.add(f"{name}: {plural(len(gone), 'checkpoint')}")
    released = {c.ref for one in gone for c in one.captures if _names_snapshot(c)}
    environment = None
    try:
        if session.environment.is_dir():  # not where a kernel ran without layers
            environment = StoredEnvironment(session.environment)
    except EnvironmentRefused as error:
        report.add(f"{name}: {error}")
    if report.dry_run:
        _say_layers(session, environment, gone, name, report)
        return {ref for ref in released if ref}
    _delete(session, gone, environment, name, report)
    return {ref for ref in released if ref}


def _names_snapshot(capture: Capture) -> bool:
    return capture.kind == "filesystem" and capture.engine != "overlay" and bool(capture.ref)


def _kept_captures(timeline: Timeline, gone: set[str]) -> list[Capture]:
    return [c for one in timeline if one.id not in gone and (c := overlay_of(one)) is not None]


def _say_layers(
    session: Session,
    environment: StoredEnvironment | None,
    gone: list[Checkpoint],
    name: str,
    report: Report,
) -> None:
    if environment is None:
        return
    kept = _kept_captures(session.timeline, {one.id for one in gone})
    layers = environment.unneeded(kept)
    if layers:
        paths = [environment.directory.layers / layer for layer in layers]
        report.add(
            f"{name}: {plural(len(layers), 'layer')} of the environment",
            room_of(paths, exclusive=True),
        )
    covered = environment.covered_room(kept)
    if covered:
        report.add(f"{name}: what newer layers of the environment replace", covered)


def _delete(
    session: Session,
    gone: list[Checkpoint],
    environment: StoredEnvironment | None,
    name: str,
    report: Report,
) -> None:
    timeline, before = session.timeline, room_of([session.environment])
    ids = {one.id for one in gone}
    runs = environment.merge_all(_kept_captures(timeline, ids)) if environment is not None else 0
    changed: dict[str, Checkpoint] = {}
    for checkpoint in list(timeline):
        capture = overlay_of(checkpoint)
        if checkpoint.id in ids or capture is None or environment is None:
            continue
        stacks = environment.stacks_of(capture)
        if stacks != capture.details.get("stacks", {}):
            new = replace(capture, details={**capture.details, "stacks": stacks})
            changed[checkpoint.id] = timeline.set_capture(checkpoint.id, new)
    state = _without(timeline, ids, changed)
    if ids or changed:
        session.store.save(state, changed.values(), deleted_ids=ids)
    if environment is None:
        return
    session.store.settle()
    layers = environment.unneeded(_kept_captures(timeline, ids))
    environment.delete(layers)
    freed = max(0, before - room_of([session.environment]))
    if layers or runs:
        report.add(f"{name}: {plural(len(layers), 'layer')} of the environment", freed)


def _without(timeline: Timeline, gone: set[str], changed: dict[str, Checkpoint]) -> TimelineState:
    """The timeline's state once these are gone; adds to `changed` whoever hangs elsewhere then."""
    parents = timeline.parents()

    def above(id: str | None) -> str | None:
        while id is not None and id in gone:
            id = parents[id]
        return id

    for checkpoint in timeline:
        parent = above(checkpoint.parent)
        if checkpoint.id not in gone and parent != checkpoint.parent:
            # the cells of those that go led to this one too
            ran = tuple(placed.cell for placed in along(timeline, parent, checkpoint.id))
            known = changed.get(checkpoint.id, checkpoint)
            changed[checkpoint.id] = replace(known, parent=parent, cells=ran)
    state = timeline.state
    last_safety = state.last_safety if state.last_safety not in gone else None
    return replace(state, head=above(state.head), last_safety=last_safety)


def forget(store: Store, info: TimelineInfo) -> Report:
    """Delete a whole timeline and what only it needs. Raises SessionInUse: nothing was done."""
    report = Report(dry_run=False)
    released = _whole(store, info, one_line(stored.name_of(info), 200), report)
    _sweep(store, released, report)
    return report


def delete_one(session: Session, checkpoint: Checkpoint) -> None:
    """Delete one checkpoint of a session that was taken; its children hang on its parent then.

    Raises DeleteRefused for the one that the session is at, and for a pinned one.
    """
    head = session.timeline.head
    if head is not None and checkpoint.id == head.id:
        raise DeleteRefused(
            checkpoint.number,
            "the next kernel starts there",
            "`jupyter timetravel restore` another one first, or delete the whole --timeline.",
        )
    if checkpoint.pinned:
        raise DeleteRefused(
            checkpoint.number,
            "it is pinned",
            f"In a kernel, %checkpoint --unpin {checkpoint.number} takes the pin away.",
        )
    report = Report(dry_run=False)
    environment = None
    if session.environment.is_dir():  # not where a kernel ran without layers
        environment = StoredEnvironment(session.environment)
    released = {c.ref for c in checkpoint.captures if _names_snapshot(c) and c.ref}
    _delete(session, [checkpoint], environment, session.notebook, report)
    _sweep(session.store, released, report)


def _whole(store: Store, info: TimelineInfo, name: str, report: Report) -> set[str]:
    """Delete a session: first from the database, so that nothing names what goes then."""
    path = store.directory / "environments" / info.id
    size = room_of([path])
    released: set[str] = set()
    if report.dry_run:
        if info.in_use:
            report.add(f"{name}: in use, left alone")
            return set()
    else:
        purged = store.forget(info.id)
        if purged is None:
            raise SessionInUse(f"A kernel runs on {name}. Nothing was done; shut it down first.")
        EnvironmentDirectory(path).remove()
        released = {c.ref for c in purged.captures if _names_snapshot(c) and c.ref}
    report.add(f"{name}: the whole session, {plural(info.checkpoints, 'checkpoint')}", size)
    return released


def _left_over(store: Store, report: Report) -> None:
    """Environments whose session is gone, and trials of the doctor's that were cut short."""
    known = {info.id for info in store.timelines()}
    environments = store.directory / "environments"
    for path in sorted(environments.iterdir()) if environments.is_dir() else ():
        if path.name in known or time.time() - path.stat().st_mtime < _PIN_S:
            continue  # a kernel that starts makes its directory and its row at about one time
        report.add(f"environment {path.name[:12]} of a session that is gone", room_of([path]))
        if not report.dry_run:
            EnvironmentDirectory(path).remove()

    for path in left_over(store.directory):
        report.add("an import that was cut short", room_of([path]))
        if not report.dry_run:
            remove_tree(path)


def _files(store: Store, released: set[str], report: Report) -> None:
    """Let go of snapshots of the workspace that no checkpoint names, and of their content."""
    blobs = BlobStore(store.directory)
    named = store.references("filesystem", "workspace") | store.references(
        "filesystem", "kept-aside"
    )
    wanted_gone = released if report.dry_run else released - named
    if not any(info.in_use for info in store.timelines()):
        wanted_gone |= {pin for pin in blobs.pinned() if pin not in named and _is_old(blobs, pin)}
    if wanted_gone:
        report.add(f"{plural(len(wanted_gone), 'snapshot')} of workspaces")
    if report.dry_run:
        return
    with closing(WorkspaceEngine([], blobs, journal_dir=store.directory / "journal")) as engine:
        try:
            engine.release(wanted_gone)
            swept = engine.collect_garbage()
        except (WorkspaceError, OSError) as error:
            report.add(f"the content of files was left as it is: {error}")
            return
    if swept.removed:
        report.add(f"{plural(swept.removed, 'piece')} of content of files", swept.freed_bytes)


def _sweep(store: Store, released: set[str], report: Report) -> None:
    """Delete what no checkpoint needs any more, and say how much that was."""
    if not report.dry_run:
        forget_gone(store.directory)
    _files(store, released, report)
    _namespaces(store, report)
    _images(store, report)


def _images(store: Store, report: Report) -> None:
    """Delete written processes that no checkpoint names."""
    images = ImageStore(store.directory)
    before_ns = time.time_ns()
    try:
        refs = images.refs()
        kept = store.references("process", "image")
        gone = [ref for ref in refs if ref not in kept]
        if report.dry_run:
            freed = room_of([images.path / ref for ref in gone])
        else:
            idle = not any(info.in_use for info in store.timelines())
            freed = images.sweep(kept, before_ns=before_ns, idle=idle)
            gone = [ref for ref in gone if ref not in images.refs()]
    except (StoreError, OSError) as error:
        report.add(f"written processes were left as they are: {error}")
        return
    if gone:
        report.add(f"{plural(len(gone), 'image')} of processes", freed)


def _namespaces(store: Store, report: Report) -> None:
    """Delete what no checkpoint's namespace needs, and no notebook as it was."""
    for kind, what, make in (
        ("namespace", "namespaces", NamespaceStore),
        ("document", "notebooks as they were", DocumentStore),
    ):
        if (store.directory / make.folder).is_dir():
            _contents(store, report, kind, what, make(store.directory))


def _contents(store: Store, report: Report, kind: str, what: str, contents: NamespaceStore) -> None:
    try:
        if report.dry_run:
            wanted = contents.wanted(store.references(kind))
            gone = set(contents.blobs()) - wanted
            count, size = len(gone), contents.bytes_of(gone)
        else:
            swept = contents.sweep(lambda: store.references(kind))
            count, size = swept.removed, swept.freed_bytes
    except (StoreError, OSError) as error:
        report.add(f"the content of {what} was left as it is: {error}")
        return
    if count:
        report.add(f"{plural(count, 'piece')} of {what}", size)


def _is_old(blobs: BlobStore, pin: Digest) -> bool:
    try:
        return time.time() - os.stat(blobs.path / "pins" / pin).st_mtime > _PIN_S
    except OSError:
        return False
