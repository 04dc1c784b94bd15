"""At the start: finish or undo restores that a crash interrupted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from kernel_runtime.engines.workspace.anchor import Anchor
from kernel_runtime.engines.workspace.apply import undo
from kernel_runtime.engines.workspace.journal import Journal, interrupted
from kernel_runtime.engines.workspace.model import RecoverResult, SnapshotId
from kernel_runtime.engines.workspace.staging import OpenStage, open_stage, remove_stage

Problem = tuple[bytes, str]


def recover(journal_dir: Path, roots: Sequence[Path]) -> list[RecoverResult]:
    """Bring every interrupted restore to one end. Restores that are at work are left alone.

    Up to the commit a restore is undone, after it finished. What cannot be done now stays in
    the journal and is tried again at the next call. Several sessions may share the directory:
    a restore in other roots than these is helped if it can be, and not mentioned.
    """
    results: list[RecoverResult] = []
    damaged: list[Path] = []
    for journal in interrupted(journal_dir, damaged):
        with contextlib.closing(journal):
            result = _recover_one(journal)
            if any(path in roots for path, _ in journal.record.roots):
                results.append(result)
    for file in damaged:
        why = "the journal cannot be read; remove the file once the directory was looked at"
        results.append(RecoverResult("partly", None, ((os.fsencode(file), why),)))
    return results


def was_committed(journal_dir: Path, roots: Sequence[Path]) -> bool:
    """Whether one of the restores in these directories had reached its end. Changes nothing.

    Raises OSError.
    """
    found = False
    for journal in interrupted(journal_dir, []):
        with contextlib.closing(journal):
            ours = any(path in roots for path, _ in journal.record.roots)
            found |= ours and journal.record.state == "committed"
    return found


def _recover_one(journal: Journal) -> RecoverResult:
    record = journal.record
    snapshot_id = SnapshotId(record.snapshot_id)
    committed = record.state == "committed"
    problems: list[Problem] = []
    with contextlib.ExitStack() as stack:
        anchors: dict[int, Anchor] = {}
        for number, (path, identity) in enumerate(record.roots):
            try:
                anchor = Anchor(path)
            except OSError as cause:
                problems.append((b"", f"{path}: {cause.strerror}"))
                continue
            stack.enter_context(contextlib.closing(anchor))
            if anchor.identity != identity:
                # What the restore did, and its working directory, went with the old one.
                problems.append((b"", f"{path} is another directory than the restore worked in"))
                journal.remove()
                return RecoverResult("partly", snapshot_id, tuple(problems))
            anchors[number] = anchor
        if len(anchors) < len(record.roots):
            return RecoverResult("partly", snapshot_id, tuple(problems))
        try:
            if record.state == "applying":
                stages: list[OpenStage | None] = []
                for where in record.stages:
                    stage = open_stage(anchors[where.root], where)
                    if stage is not None:
                        stack.enter_context(contextlib.closing(stage))
                    stages.append(stage)
                problems += undo(record, anchors, stages)
            if not problems:
                for where in record.stages:
                    problems += remove_stage(anchors[where.root], where, committed=committed)
            if not problems:
                journal.remove()
        except OSError as cause:
            problems.append((b"", cause.strerror or str(cause)))
    if problems:
        return RecoverResult("partly", snapshot_id, tuple(problems))
    return RecoverResult("finished" if committed else "undone", snapshot_id)
