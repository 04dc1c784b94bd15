"""Secrets in what is noted of checkpoints: comments, cells, summaries, notebooks as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jupyter_timetravel.redaction.needle import REDACTED, Needle
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.timeline import Capture, Checkpoint
from kernel_runtime.timeline.cells import OUTPUT_LENGTH, RESULT_LENGTH, Cell
from kernel_runtime.timeline.model import Note


def cleaned(checkpoint: Checkpoint, needle: Needle, lost: Collection[str]) -> Checkpoint:
    """The checkpoint with its texts cleaned, and without summaries of these variables."""
    made = replace(
        checkpoint,
        comment=needle.cleaned(checkpoint.comment),
        label=None if checkpoint.label is None else needle.cleaned(checkpoint.label),
        code=needle.cleaned_line(checkpoint.code),
        variables={
            name: summary
            for name, summary in checkpoint.variables.items()
            if name not in lost
            and name not in needle.variables
            and needle.cleaned_all([name, dict(summary)]) == [name, dict(summary)]
        },
        cells=tuple(_cleaned_cell(cell, needle) for cell in checkpoint.cells),
        captures=tuple(_noted(capture, needle) for capture in checkpoint.captures),
    )
    # as it was, where nothing differs: summaries are read from the store when they are asked for
    same = dict(made.variables) == dict(checkpoint.variables)
    return (
        checkpoint if same and replace(made, variables=checkpoint.variables) == checkpoint else made
    )


def _cleaned_cell(cell: Cell, needle: Needle) -> Cell:
    result = cell.result
    if result is not None:
        result = needle.cleaned(result, is_cut=len(result) >= RESULT_LENGTH)
    return replace(
        cell,
        source=needle.cleaned(cell.source),
        ename=None if cell.ename is None else needle.cleaned(cell.ename),
        result=result,
        output=needle.cleaned(cell.output, is_cut=len(cell.output) >= OUTPUT_LENGTH),
        effects=tuple(replace(one, subject=needle.cleaned(one.subject)) for one in cell.effects),
        compensations=tuple(
            replace(one, text=needle.cleaned(one.text)) for one in cell.compensations
        ),
    )


def _noted(capture: Capture, needle: Needle) -> Capture:
    notes = tuple(
        Note(note.kind, needle.cleaned(note.subject), needle.cleaned(note.detail))
        for note in capture.not_captured
    )
    error = None if capture.error is None else needle.cleaned(capture.error)
    details = needle.cleaned_fields(dict(capture.details))
    return replace(capture, not_captured=notes, error=error, details=details)


def parts(before: Checkpoint, after: Checkpoint) -> list[str]:
    """What of it is another now, in words."""
    gone = sorted(set(before.variables) - set(after.variables))
    changed = [
        (before.comment != after.comment, "the comment"),
        (before.label != after.label, "the label"),
        (before.code != after.code or before.cells != after.cells, "the cells that ran"),
        (bool(gone), f"summaries of {', '.join(gone)}"),
        (
            [(c.error, c.not_captured) for c in before.captures]
            != [(c.error, c.not_captured) for c in after.captures],
            "notes of what it does not hold",
        ),
    ]
    return [what for is_changed, what in changed if is_changed]


def names(source: str, variables: Collection[str]) -> bool:
    """Whether a cell names one of these variables."""
    return any(re.search(rf"\b{re.escape(name)}\b", source) for name in variables)


# -- notebooks as they were ---------------------------------------------------------------------


def holds(store: DocumentStore, ref: str, needle: Needle) -> bool:
    """Whether a cell of a notebook holds it. Raises StoreError."""
    return any(needle.is_in([store.get(digest)]) for digest in store.needs(ref))


def rewrite(store: DocumentStore, ref: str, needle: Needle) -> str:
    """Store the notebook with its cells cleaned; return its name. Raises StoreError."""
    manifest = store.manifest(ref)
    return store.save([(_cell(store, d, needle), bool(t)) for d, t in manifest["cells"]])


def _cell(store: DocumentStore, digest: str, needle: Needle) -> str:
    if not needle.is_in([store.get(digest)]):
        return digest
    cell: dict[str, Any] = needle.cleaned_fields(store.cell(digest))
    if needle.is_in([json.dumps(cell, ensure_ascii=False).encode("utf-8", "replace")]):
        # in a place where no text is to be replaced
        kept: dict[str, Any] = {key: cell[key] for key in ("id", "cell_type") if key in cell}
        cell = {**kept, "metadata": {}, "source": REDACTED}
        if cell.get("cell_type") == "code":
            cell |= {"outputs": [], "execution_count": None}
    return store.put_cell(cell)
