"""Time travel for the files of a directory, within an ordinary kernel or IPython terminal.

There is no supervisor here, so nothing can put memory back: only the workspace engine is used, in
the user's own process, and only when it is asked for. ``FilesOnly.request`` answers the commands of
docs/protocol.md that make sense then, so the magics are the same ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.model import Change, RestoreResult, Snapshot, SnapshotId
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.engines.workspace.protect import DOCUMENT
from kernel_runtime.errors import BadRequest, CheckpointRefused, RestoreRefused, UnknownCheckpoint
from kernel_runtime.store import encryption
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import open_store
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline import Capture, Checkpoint, Coordinate, Note, Reason, Spec, new_id
from kernel_runtime.timeline.report import restore_text

KERNEL_TO_START: Final = (
    'For memory too, choose the kernel "Python 3 (time travel)", or run\n'
    "`jupyter console --kernel python3-timetravel`."
)
KERNEL_NAME: Final = "files only"
NOTES_SHOWN: Final = 50
LARGE: Final = (
    "{root} is too large to be captured here ({files:,} files, {size:.1f} GB or more). Nothing was "
    "captured. %cd to the directory of your project and load the extension again: "
    "%reload_ext jupyter_timetravel."
)


class FilesOnly:
    """The timeline of the files below one directory. Used from one thread, as cells are."""

    def __init__(self, root: Path, store: Path, *, key: str | None = None) -> None:
        """``key``: what the timeline is found by next time, for example the notebook's path.

        Raises TimeTravelError where files cannot be captured (another system than Linux).
        """
        self.root = root
        self._epoch = new_id()
        self._owner: int | None = os.getpid()
        encryption.at_start(store)
        self._blobs = BlobStore(store)
        self._engine = WorkspaceEngine(
            [root],
            self._blobs,
            journal_dir=store / "journal",
            document=Path(key) if key and key.endswith(".ipynb") else None,
            mapped_files=_mapped_by_this_process,
        )
        self._store = open_store(store)
        try:
            self._timeline = self._store.load_timeline(
                key or str(root), KERNEL_NAME, epoch=self._epoch
            )
        except TimelineInUse:
            self._timeline = self._store.load_timeline(None, KERNEL_NAME, epoch=self._epoch)
        self._engine.recover()
        self._size_is_fine = False

    def close(self) -> None:
        """Stop watching files and give the timeline back; nothing in a child or a second time."""
        owner, self._owner = self._owner, None
        if os.getpid() == owner:
            self._engine.close()
            self._store.close()

    def request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        """Answer a command. Raises TimeTravelError, and then nothing was changed."""
        answer: Callable[..., dict[str, Any]] | None = getattr(self, f"_do_{command}", None)
        if answer is None:
            raise BadRequest(f"This kernel has time travel for files only, not {command}.")
        return answer(**args)

    # -- commands ---------------------------------------------------------------------------

    def _do_status(self) -> dict[str, Any]:
        head = self._timeline.head
        return {
            "timeline": self._timeline.id,
            "head": self._timeline.record(head) if head else None,
            "busy": False,
            "config": {},
            "memory": {"frozen_bytes": 0, "budget_bytes": 0},
            "engines": {"process": None, "filesystem": self._engine.name},
            "workspace": [str(self.root)],
            "limits": ["files only: memory stays as it is", KERNEL_TO_START],
            "counts": {"checkpoints": len(self._timeline)},
            "last_cow_tax_ms": None,
        }

    def _do_list(self, include_auto: bool = True, history: Spec | None = None) -> dict[str, Any]:
        timeline = self._timeline
        wanted = set(timeline.parents())
        if history is not None:
            newest = timeline.resolve(history)
            wanted = {*timeline.history(newest.id), newest.id}
        shown = [c for c in timeline if c.id in wanted and (include_auto or not c.is_auto)]
        return {
            "checkpoints": [timeline.record(c, history=False) for c in shown],
            "parents": timeline.parents(),
            "head": timeline.state.head,
        }

    def _do_get(self, checkpoint: Spec) -> dict[str, Any]:
        found = self._timeline.resolve(checkpoint)
        return {"checkpoint": self._timeline.record(found), "variables": {}}

    def _do_checkpoint(
        self, comment: str = "", label: str | None = None, pin: bool = False
    ) -> dict[str, Any]:
        self._check_size()
        started = time.perf_counter()
        snapshot = self._engine.capture()
        made = self._add("manual", snapshot, comment=comment, label=label, pinned=pin)
        took_ms = 1000 * (time.perf_counter() - started)
        return {"checkpoint": self._timeline.record(made), "pause_ms": took_ms}

    def _do_diff(self, a: Spec, b: Spec | None = None) -> dict[str, Any]:
        first = self._snapshot_of(self._timeline.resolve(a))
        if b is None:
            changes = self._engine.current_changes(first)
        else:
            changes = self._engine.diff(first, self._snapshot_of(self._timeline.resolve(b)))
        return {"variables": _no_variables(), "files": [self._change(c) for c in changes]}

    def _do_restore(self, **args: Any) -> dict[str, Any]:
        asked = RestoreRequest.read(args)
        if asked.only != "files":
            what = "--undo" if asked.undo else asked.checkpoint
            raise RestoreRefused(
                "Memory cannot be brought back in this kernel; nothing was changed. The files can: "
                f"%restore {what} --only files.\n{KERNEL_TO_START}"
            )
        if asked.paths is not None or asked.keep_notebooks or asked.lease is not None:
            raise BadRequest("This kernel restores all files of its folder. Nothing was changed.")
        target = self._timeline.last_safety
        if not asked.undo:
            target = self._timeline.resolve(asked.checkpoint)
        if target is None:
            raise UnknownCheckpoint("--undo", "Nothing was restored yet.")
        started = time.perf_counter()
        plan = self._engine.plan_restore(self._snapshot_of(target), allow_missing=asked.partial)
        if plan.problems:
            path, why = plan.problems[0]
            raise RestoreRefused(
                f"The files of #{target.number} cannot be brought back: {printable(path)}: {why}. "
                "Nothing was changed; remove the cause and restore again, or --partial to bring "
                "all files but those whose content is damaged or gone."
            )
        result: dict[str, Any] = {
            "checkpoint": self._timeline.record(target),
            "safety": None,
            "dry_run": asked.dry_run,
            "variables": _no_variables(),
            "files": [self._change(change) for change in plan.done],
            "kept_aside": [],
            "threads": {"brought_back": 0, "ids_kept": True},
            "process": None,
            "warnings": [f"{printable(path)}: {why}" for path, why in plan.warnings],
        }
        if not asked.dry_run:
            snapshot = self._engine.capture(rules_of=plan.snapshot_id)
            comment = f"before the restore of #{target.number}"
            safety = self._add("safety", snapshot, comment=comment)
            done = self._engine.restore(plan, foreign=snapshot)
            self._timeline.move_head(target.id)
            self._store.save(self._timeline.state)
            result["safety"] = self._timeline.record(safety)
            result["kept_aside"] = _kept_aside(done)
            result["warnings"] += [
                f"{printable(one.path)} stays as it is: {one.reason}"
                for one in done.kept
                if one.reason != DOCUMENT
            ]
        result["took_ms"] = 1000 * (time.perf_counter() - started)
        result["text"] = restore_text(result)
        return result

    def _do_label(self, checkpoint: Spec, label: str | None) -> dict[str, Any]:
        found = self._timeline.resolve(checkpoint)
        return self._changed(self._timeline.replace(found.id, label=label))

    def _do_pin(self, checkpoint: Spec, pinned: bool = True) -> dict[str, Any]:
        found = self._timeline.resolve(checkpoint)
        return self._changed(self._timeline.replace(found.id, pinned=pinned))

    def _do_delete(self, checkpoint: Spec) -> dict[str, Any]:
        found = self._timeline.resolve(checkpoint)
        record = self._timeline.record(found)
        gone = self._timeline.delete(found.id)
        self._store.save(self._timeline.state, gone.rehung, deleted_ids=[found.id])
        ref = self._snapshot_of(found)
        if ref not in self._store.references("filesystem", self._engine.name):
            self._engine.release([ref])
        return {"deleted": record}

    # -- inside -----------------------------------------------------------------------------

    def _add(
        self,
        reason: Reason,
        snapshot: Snapshot,
        *,
        comment: str,
        label: str | None = None,
        pinned: bool = False,
    ) -> Checkpoint:
        left = [Note("file", printable(one.path), one.reason) for one in snapshot.left_out]
        capture = Capture(
            "filesystem",
            self._engine.name,
            "ready",
            bytes=snapshot.copied_bytes,
            ref=snapshot.id,
            not_captured=tuple(left[:NOTES_SHOWN]),
        )
        checkpoint = self._timeline.add(
            created_at=datetime.now(timezone.utc),
            reason=reason,
            coordinate=Coordinate(self._epoch),
            comment=comment,
            label=label,
            pinned=pinned,
            captures=[capture],
        )
        # What the database names must be on the disk before it does.
        self._blobs.flush()
        self._store.save(self._timeline.state, [checkpoint])
        return checkpoint

    def _changed(self, checkpoint: Checkpoint) -> dict[str, Any]:
        self._store.save(self._timeline.state, [checkpoint])
        return {"checkpoint": self._timeline.record(checkpoint)}

    def _check_size(self) -> None:
        """Refuse a home directory full of other things, once, before the first capture."""
        if self._size_is_fine or len(self._timeline):
            return
        found = self._engine.estimate()
        if not found.complete:
            size = found.bytes / 1e9
            raise CheckpointRefused(LARGE.format(root=self.root, files=found.files, size=size))
        self._size_is_fine = True

    def _snapshot_of(self, checkpoint: Checkpoint) -> SnapshotId:
        capture = checkpoint.capture("filesystem")
        if capture is None or capture.ref is None:
            raise RestoreRefused(f"#{checkpoint.number} holds no files. Nothing was changed.")
        return SnapshotId(capture.ref)

    def _change(self, change: Change) -> dict[str, Any]:
        return {
            "path": printable(change.path),
            "root": str(self.root),
            "kind": change.kind,
            "size_before": change.size_before,
            "size_after": change.size_after,
        }


def _no_variables() -> dict[str, list[Any]]:
    return {"added": [], "removed": [], "changed": []}


def _kept_aside(done: RestoreResult) -> list[dict[str, str]]:
    return [
        {"path": printable(k.path), "saved_as": printable(k.saved_as), "reason": k.reason}
        for k in done.kept_aside
    ]


def _mapped_by_this_process() -> set[tuple[int, int]]:
    from kernel_runtime.supervisor.mappings import writable_mappings

    return writable_mappings("/proc/self")
