"""The cells that ran, as an export has them: written from a timeline, read with distrust."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from kernel_runtime.timeline import Checkpoint, Timeline
from kernel_runtime.timeline.cells import (
    Cell,
    Kind,
    Outcome,
    along,
    from_fresh,
    pack,
    unpack,
)
from kernel_runtime.timeline.model import check_text

_LONGEST: Final = 64 << 20
"""Characters of one cell."""


def leading(timeline: Timeline, checkpoint: Checkpoint, parent: str | None) -> tuple[Cell, ...]:
    """The cells that lead from a parent, which may be several checkpoints back, to a checkpoint.

    Those of a process before the last fresh start do not lead there.
    """
    counting = {placed.cell.id for placed in from_fresh(timeline, checkpoint.id)}
    counting |= {cell.id for cell in checkpoint.cells}
    line = along(timeline, parent, checkpoint.id)
    return tuple(placed.cell for placed in line if placed.cell.id in counting)


def write(timeline: Timeline, checkpoint: Checkpoint, parent: str | None) -> list[dict[str, Any]]:
    """Those, as JSON has them."""
    found = leading(timeline, checkpoint, parent)
    return [{"source": cell.source, **pack(cell)} for cell in found]


def read(rows: Iterable[Mapping[str, Any]], ids: Mapping[str, str]) -> tuple[Cell, ...]:
    """The inverse. ids: what the checkpoints are called now.

    Raises ValueError, TypeError, KeyError, BadRequest.
    """
    return tuple(_read(row, ids) for row in rows)


def _read(row: Mapping[str, Any], ids: Mapping[str, str]) -> Cell:
    plain = dict(row)
    cell = unpack(plain, _text(plain.pop("source")))
    if cell.outcome not in get_args(Outcome) or cell.kind not in get_args(Kind):
        raise ValueError(f"a cell ended as {cell.outcome!r:.40}")
    texts = [cell.id, cell.cell_id, cell.ename, cell.before, cell.result, cell.output]
    for effect in cell.effects:
        texts += [effect.kind, effect.subject]
        _numbers(effect.count, effect.at)
    for one in cell.compensations:
        texts += [one.id, one.text]
    for text in texts:
        if text is not None:
            _text(text)
    _numbers(cell.execution_count, cell.started_at, cell.duration_s)
    return replace(cell, before=ids.get(cell.before) if cell.before is not None else None)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise TypeError("a cell has something in place of a text")
    return check_text(value, "cell")


def _numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError("a cell has something in place of a number")
