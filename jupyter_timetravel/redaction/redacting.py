"""Taking a secret out of a timeline, and out of the files of the store.

Order: the memory of processes goes first, which needs no room and gives some; then what is kept is
written without the secret and flushed, then the rows name that, in one transaction; only then what
held it is deleted. Cut short at any moment, each checkpoint is as it was or as it will be, and
doing it again finishes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from jupyter_timetravel.exchange.taking import left_over
from jupyter_timetravel.offline.environment import overlay_of
from jupyter_timetravel.redaction import files, layers, records, variables
from jupyter_timetravel.redaction.looking import Plan, Stores
from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.engines.overlay.removal import remove_tree
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.tree import TreeDamaged
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.store import reserve
from kernel_runtime.store.database import Store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.dmtcp_images import DmtcpImageStore
from kernel_runtime.store.dumps import DumpStore
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.reflinks import sync_filesystem
from kernel_runtime.timeline import Capture, Checkpoint
from kernel_runtime.timeline.model import Note

_GONE = "redacted: its memory may have held what was taken out"


class RedactionUnfinished(TimeTravelError):
    """A secret was not taken out of everything: each checkpoint is as it was or without it."""

    def __init__(self, notebook: str, cause: Exception) -> None:
        super().__init__(
            f"The secret is still in checkpoints of {notebook}, or in the store: {cause} Each "
            "checkpoint is as it was or without it. Do it again; if the disk is full, make room "
            "first (`jupyter timetravel prune`)."
        )


def redact(stores: Stores, plan: Plan, needle: Needle) -> None:
    """Do it to one timeline, which this process has. Raises RedactionUnfinished."""
    try:
        _redact(stores, plan, needle)
    except (StoreError, WorkspaceError, TreeDamaged, OSError) as error:
        raise RedactionUnfinished(plan.session.notebook, error) from error


def _redact(stores: Stores, plan: Plan, needle: Needle) -> None:
    store, timeline = plan.session.store, plan.session.timeline
    without_memory = [
        timeline.replace(one.id, captures=tuple(_let_go(plan, c) for c in one.captures))
        for one in list(timeline)
        if any((c.engine, c.ref) in plan.processes for c in one.captures)
    ]
    if without_memory:
        store.save(timeline.state, without_memory)
        sweep_processes(store, {timeline.id})
    released: set[str] = set()

    def write() -> None:
        with stores.namespaces.writing(), stores.documents.writing(), stores.files.adding():
            changed = [made for one in list(timeline) if (made := _new(stores, plan, one, needle))]
            stores.namespaces.flush()
            stores.documents.flush()
            stores.files.flush()
            store.rewrite(timeline.state, changed)
        released.update(ref for ref, paths in plan.snapshots.items() if paths)

    reserve.used_for(store.directory, write)
    store.settle()
    if plan.environment is not None:
        layers.remove(plan.environment, plan.hits)
    for ref in released:
        stores.files.unpin(Digest(ref))


def _let_go(plan: Plan, capture: Capture) -> Capture:
    if (capture.engine, capture.ref) not in plan.processes:
        return capture
    return replace(capture, state="evicted", bytes=0, ref=None, error=_GONE, details={})


def _new(stores: Stores, plan: Plan, checkpoint: Checkpoint, needle: Needle) -> Checkpoint | None:
    """The checkpoint without it, what it names stored; None if nothing is another."""
    clean = plan.records.get(checkpoint.id, checkpoint)
    captures = tuple(
        _capture(stores, plan, checkpoint, before, noted, needle)
        for before, noted in zip(checkpoint.captures, clean.captures, strict=False)
    )
    made = replace(clean, captures=captures)
    return None if clean is checkpoint and captures == checkpoint.captures else made


def _capture(
    stores: Stores,
    plan: Plan,
    checkpoint: Checkpoint,
    before: Capture,
    noted: Capture,
    needle: Needle,
) -> Capture:
    """before: as it is now; noted: as it was, with its texts cleaned."""
    ref = before.ref or ""
    if before.error == _GONE:
        return before
    if before.state != "ready":
        return noted
    notes: list[Note] = []
    if before.kind == "namespace" and (found := plan.namespaces.get(ref)):
        manifest = stores.namespaces.manifest(ref)
        made = variables.rewrite(stores.namespaces, manifest, found, needle)
        ref = stores.namespaces.save_manifest(made)
        notes = [Note("variable", name, why) for name, why in found.lost.items()]
    elif before.kind == "document" and ref in plan.documents:
        ref = records.rewrite(stores.documents, ref, needle)
    elif before.engine == "overlay" and plan.environment is not None:
        capture = overlay_of(checkpoint)
        held = plan.environment.stacks_of(capture) if capture is not None else {}
        mine = {layer for stack in held.values() for layer in stack}
        gone = (hit for hit in plan.hits if not hit.attribute)
        shown = sorted({hit.shown for hit in gone if hit.layer in mine})
        notes = [Note("file", needle.cleaned(path), files.REASON) for path in shown]
    elif before.kind == "filesystem" and (paths := plan.snapshots.get(ref)):
        ref = files.rewrite(stores.files, ref, paths, needle)
        notes = [
            Note("file", needle.cleaned(printable(path)), files.REASON) for _, path in sorted(paths)
        ]
    known = {(note.kind, note.subject) for note in notes}
    kept = [note for note in noted.not_captured if (note.kind, note.subject) not in known]
    return replace(noted, ref=ref or None, not_captured=(*kept, *notes))


# -- what nothing names any more ------------------------------------------------------------------


def sweep_processes(store: Store, taken: Collection[str]) -> None:
    """Delete what was written of processes and is named by no checkpoint. taken: timelines that
    this process has: no kernel is about to name something in them."""
    before_ns = time.time_ns()
    idle = not any(info.in_use and info.id not in taken for info in store.timelines())
    for engine, made in (("image", ImageStore), ("criu", DumpStore), ("dmtcp", DmtcpImageStore)):
        kept = store.references("process", engine)
        made(store.directory).sweep(kept, before_ns=before_ns, idle=idle)


def _unfinished(store: Store, stores: Stores, taken: Collection[str]) -> list[str]:
    """What somebody was about to publish, or to delete, when the power went or a kill came."""
    pins = stores.files.pinned()
    named = store.references("filesystem")
    if any(info.in_use and info.id not in taken for info in store.timelines()):
        return ["files that were never finished were left, since kernels run: do it again then"]
    for contents in (stores.files, stores.namespaces, stores.documents):
        contents.remove_unfinished()
    for pin in set(pins) - named:
        stores.files.unpin(pin)
    for path in left_over(store.directory):
        remove_tree(path)
    return []


def sweep(store: Store, stores: Stores, taken: Collection[str]) -> list[str]:
    """Delete what held it from the disk; returns what could not be, in words."""
    left = _unfinished(store, stores, taken)
    for index in (store.directory / "journal").glob("index-*.json"):
        index.unlink()  # a cache of what is known of files, which the next kernel makes again
    backups = sorted(store.directory.glob(f"{FILE_NAME}.v*-backup"))
    try:
        sweep_processes(store, taken)
        with closing(
            WorkspaceEngine([], stores.files, journal_dir=store.directory / "journal")
        ) as engine:
            engine.collect_garbage()
        try:
            # an array that no longer held it may be stored as what changed in the one that did
            stores.namespaces.forget_unnamed(store.references("namespace"))
        except StoreError as error:
            left.append(
                f"content that held it may still be what others are stored as deltas to: {error}"
            )
        stores.namespaces.sweep(lambda: store.references("namespace"))
        stores.documents.sweep(lambda: store.references("document"))
        for backup in backups:
            backup.unlink()
    except (StoreError, WorkspaceError, OSError) as error:
        left.append(f"content that held it is still in the store, unnamed: {error}")
    try:
        store.write_anew()
    except StoreError as error:
        left.append(f"free pages of the database may hold older records: {error}")
    try:
        # or a power cut could bring back what was deleted
        descriptor = os.open(store.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_filesystem(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        left.append(f"the disk did not take the deletions in yet: {error.strerror}")
    return left


def still_there(store: Store, stores: Stores, plan: Plan) -> list[str]:
    """Which of the refs that held it are on the disk still, in words."""
    held = [
        *(ref for ref, found in plan.namespaces.items() if found and _has(stores.namespaces, ref)),
        *(ref for ref, paths in plan.snapshots.items() if paths and stores.files.has(Digest(ref))),
    ]
    return [f"{len(held)} lists of what it was in are on the disk still"] if held else []


def _has(namespaces: Any, ref: str) -> bool:
    with suppress(StoreError):
        namespaces.get(ref)
        return True
    return False
