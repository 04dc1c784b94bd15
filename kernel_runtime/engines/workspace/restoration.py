"""One restore from its operations to its end: staged, journaled, applied, committed or undone."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace import faults
from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.apply import (
    apply_metadata,
    old_directory,
    old_file,
    open_directories,
    swap,
    undo,
)
from kernel_runtime.engines.workspace.aside import Aside
from kernel_runtime.engines.workspace.errors import WorkspaceRestoreFailed
from kernel_runtime.engines.workspace.journal import Journal, OldMeta, Stage, Step
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.operations import Drop, Operations, Parts, Place, join
from kernel_runtime.engines.workspace.same_inode import could_be, keep_inodes
from kernel_runtime.engines.workspace.staging import (
    OpenStage,
    Stager,
    make_stage,
    plan_stage,
    remove_stage,
)
from kernel_runtime.engines.workspace.state import DirState, Known
from kernel_runtime.engines.workspace.tree import TreeDamaged
from kernel_runtime.later import dataclass
from kernel_runtime.store.blobs import BlobError, BlobStore
from kernel_runtime.store.reflinks import sync_filesystem

_SYNC_ONE_BY_ONE: Final = 16

Problem = tuple[bytes, str]


@dataclass
class Restoration:
    """The means and the progress of one restore. Use once.

    aside keeps what the safety snapshot did not see. allow_missing: leave places whose
    content cannot be read as they are, instead of failing.
    """

    store: BlobStore
    stager: Stager
    aside: Aside
    anchors: Mapping[int, Anchor]
    states: Sequence[DirState | None]
    operations: Operations
    snapshot_id: str
    journal_dir: Path
    allow_missing: bool
    warnings: list[Problem] = field(default_factory=list)
    skipped: list[tuple[Place, str]] = field(default_factory=list)
    _stages: list[OpenStage] = field(default_factory=list)
    _stage_of: dict[tuple[int, Parts], int] = field(default_factory=dict)
    _expected: list[Known | DirState | None] = field(default_factory=list)
    _moved: list[int] = field(default_factory=list)
    """Numbers of the steps whose old object is in the trash."""
    _at: bytes = b""

    def run(self, committed: Callable[[], None]) -> None:
        """Do it; call committed while the journal says that it is. Raises WorkspaceRestoreFailed;
        then the tree is as before, or the error says what is left to undo."""
        roots = [(anchor.path, anchor.identity) for anchor in self.anchors.values()]
        journal = Journal.begin(self.journal_dir, self.snapshot_id, roots)
        try:
            try:
                self._stage(journal)
                self._apply(journal)
            except (OSError, BlobError, TreeDamaged) as cause:
                raise self._undo(journal, cause) from cause
            faults.point("committed")
            again = [number for number in self._moved if could_be(self._expected[number])]
            keep_inodes(self._by_number(), self._stages, journal.record, again)
            committed()
            for stage in self._stages:
                anchor = self.anchors[stage.where.root]
                left = remove_stage(anchor, stage.where, committed=True)
                self.warnings += [(path, f"could not be removed: {why}") for path, why in left]
            journal.remove()
        finally:
            for stage in self._stages:
                stage.close()
            self.stager.close()
            journal.close()

    # -- before anything changes --------------------------------------------------------------

    def _stage(self, journal: Journal) -> None:
        record = journal.record
        for item in self.operations.steps:
            self._stage_for(item.root, item.parent, record.stages)
        journal.write("staging")
        faults.point("staging")
        for where in record.stages:
            self._stages.append(make_stage(self.anchors[where.root], where))
        for place in self.operations.places:
            self._at = join(place.parent, place.name)
            stage = self._stage_for(place.root, place.parent, record.stages)
            try:
                staged = self.stager.make(self._stages[stage], len(record.steps), place)
            except (BlobError, TreeDamaged) as cause:
                if not self.allow_missing:
                    raise
                self.skipped.append((place, str(cause)))
                continue
            record.steps.append(Step(place.root, place.parent, place.name, stage, staged))
            self._expected.append(place.present)
        for drop in self.operations.drops:
            stage = self._stage_for(drop.root, drop.parent, record.stages)
            record.steps.append(Step(drop.root, drop.parent, drop.name, stage, None))
            self._expected.append(drop.present)
        self.stager.sync(self._stages)
        record.metas = self._old_metadata(record.stages)

    def _stage_for(self, root: int, parent: Parts, planned: list[Stage]) -> int:
        """The number of the stage on the filesystem of a directory; planned if need be."""
        state = self.states[root]
        top: Parts = ()
        if state is not None:
            device = state.key[0]
            for depth, name in enumerate(parent):
                state = state.dirs[name]
                if state.key[0] != device:
                    device, top = state.key[0], parent[: depth + 1]
        number = self._stage_of.get((root, top))
        if number is None:
            targets = [
                one.target
                for one in self.operations.directories
                if (one.root, one.parts) == (root, top)
            ]
            after = targets[0] if targets else None
            planned.append(plan_stage(self.anchors[root], root, top, after))
            number = self._stage_of[root, top] = len(planned) - 1
        return number

    def _old_metadata(self, stages: Sequence[Stage]) -> list[OldMeta]:
        metas: list[OldMeta] = []
        with_stage = {(one.root, one.parts): one.before for one in stages}
        for one in self.operations.directories:
            now = old_directory(self.anchors[one.root], one.root, one.parts)
            before = with_stage.get((one.root, one.parts))
            if before is not None:
                old = replace(now.entry, mode=before[0], mtime_ns=before[1])
                now = replace(now, entry=old)
            metas.append(now)
        for item in self.operations.steps:
            moved = item.present
            if isinstance(moved, DirState) and moved.entry.mode & stat.S_IRWXU != stat.S_IRWXU:
                parts = (*item.parent, item.name)
                metas.append(OldMeta(item.root, parts, replace(moved.entry, name=b"")))
        for meta in self.operations.remetas:
            self._at = join(meta.parent, meta.target.name)
            metas.append(
                old_file(self.anchors[meta.root], meta.root, meta.parent, meta.present.entry)
            )
        return metas

    # -- changing the tree --------------------------------------------------------------------

    def _apply(self, journal: Journal) -> None:
        record = journal.record
        self._at = b""
        journal.write("applying")
        faults.point("applying")
        open_directories(self._by_number(), record.metas)
        for number, step in enumerate(record.steps):
            self._at = join(step.parts, step.name)
            if swap(self.anchors[step.root], self._stages[step.stage], number, step):
                self._moved.append(number)
        self._final_metadata(record.metas)
        with self.store.adding():
            for number in self._moved:
                step = record.steps[number]
                self._at = join(step.parts, step.name)
                trash = self._stages[step.stage].trash_fd
                name = str(number).encode("ascii")
                self.aside.inspect(trash, name, self._expected[number], step.root, self._at)
            self._at = b""
            self.aside.finish()
        self._sync()
        self.store.flush()
        faults.point("commit")
        journal.write("committed")

    def _by_number(self) -> list[Anchor]:
        return [self.anchors[number] for number in range(len(self.anchors))]

    def _final_metadata(self, old: Sequence[OldMeta]) -> None:
        """Everything gets its final mode and time; what lies deeper comes first."""
        before = {(one.root, one.parts): one.entry for one in old if not one.entry.name}
        todo: list[tuple[int, Parts, Entry]] = []
        left = {id(place) for place, _ in self.skipped}
        for place in self.operations.places:
            if place.target.kind == "d" and id(place) not in left:
                entry = replace(place.target, name=b"")
                todo.append((place.root, (*place.parent, place.name), entry))
        todo += [(one.root, one.parent, one.target) for one in self.operations.remetas]
        for one in self.operations.directories:
            target = one.target or before[one.root, one.parts]
            todo.append((one.root, one.parts, replace(target, name=b"")))
        todo.sort(key=lambda item: (len(item[1]), bool(item[2].name)), reverse=True)
        for root, parts, entry in todo:
            path = self._at = join(parts, entry.name)
            with contextlib.suppress(FileNotFoundError):
                apply_metadata(
                    self.anchors[root], parts, entry,
                    lambda why, path=path: self.warnings.append((path, why)),  # type: ignore[misc]
                )  # fmt: skip

    def _sync(self) -> None:
        """Make the renames durable before the journal says that they are."""
        parents = {(d.root, d.parts) for d in self.operations.directories}
        if len(parents) > _SYNC_ONE_BY_ONE:
            for fd in {stage.device: stage.fd for stage in self._stages}.values():
                sync_filesystem(fd)
            return
        for root, parts in parents:
            for parent in self.anchors[root].steady(parts):
                with contextlib.suppress(PermissionError):
                    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
                    try:
                        os.fsync(fd)
                    finally:
                        os.close(fd)
                break

    def _undo(self, journal: Journal, cause: Exception) -> WorkspaceRestoreFailed:
        """Back to the tree from before; returns the error to raise."""
        path = self._at
        record = journal.record
        problems: list[Problem] = []
        if record.state == "applying":
            problems = undo(record, self.anchors, list(self._stages))
        if not problems:
            for where in record.stages:
                problems += remove_stage(self.anchors[where.root], where, committed=False)
            with contextlib.suppress(OSError):
                journal.remove()
        reason = (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(cause)
        return WorkspaceRestoreFailed(path, reason, undone=not problems)


def paths_in(operation: Place | Drop) -> int:
    """How many paths a step concerns, as far as what is there now tells."""
    present = operation.present
    if isinstance(present, DirState):
        return 1 + present.total_files + present.total_dirs
    return 1
