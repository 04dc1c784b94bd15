"""Checkpoints and captures as rows of the store's tables. Called by ``database`` only.

Each function works within the transaction of its caller.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone

from kernel_runtime.timeline import cells
from kernel_runtime.timeline.model import Capture, Checkpoint, Coordinate, Note, Summary
from kernel_runtime.timeline.text import storable

ReadVariables = Callable[[str], Mapping[str, Summary]]


def write_checkpoint(
    connection: sqlite3.Connection, timeline_id: str, checkpoint: Checkpoint
) -> None:
    """Write a new checkpoint, or what can change of a known one."""
    changeable = (checkpoint.parent, checkpoint.comment, checkpoint.label, checkpoint.pinned)
    updated = connection.execute(
        "UPDATE checkpoints SET parent = ?, comment = ?, label = ?, pinned = ?"
        " WHERE id = ? AND timeline = ?",
        (*changeable, checkpoint.id, timeline_id),
    )
    if not updated.rowcount:
        coordinate = checkpoint.coordinate
        connection.execute(
            "INSERT INTO checkpoints (parent, comment, label, pinned, id, timeline, number,"
            " created_at, is_auto, reason, code, epoch, incarnation, execution_count, cell_id,"
            " msg_id, variables) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *changeable,
                checkpoint.id,
                timeline_id,
                checkpoint.number,
                checkpoint.created_at.astimezone(timezone.utc).isoformat(),
                checkpoint.is_auto,
                checkpoint.reason,
                checkpoint.code,
                coordinate.epoch,
                coordinate.incarnation,
                coordinate.execution_count,
                coordinate.cell_id,
                coordinate.msg_id,
                pack_variables(checkpoint.variables),
            ),
        )
    write_captures(connection, checkpoint)
    _write_cells(connection, checkpoint)


def write_captures(connection: sqlite3.Connection, checkpoint: Checkpoint) -> None:
    """Write the captures of a checkpoint in the place of those that were there."""
    connection.execute("DELETE FROM captures WHERE checkpoint = ?", (checkpoint.id,))
    connection.executemany(
        "INSERT INTO captures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                checkpoint.id,
                position,
                capture.kind,
                capture.engine,
                capture.state,
                capture.bytes,
                capture.ref,
                capture.error,
                json.dumps([[n.kind, n.subject, n.detail] for n in capture.not_captured]),
                json.dumps(dict(capture.details)),
            )
            for position, capture in enumerate(checkpoint.captures)
        ],
    )


def _write_cells(connection: sqlite3.Connection, checkpoint: Checkpoint) -> None:
    """Write its cells where they are not there yet; they only ever grow, from a deleted parent."""
    (known,) = connection.execute(
        "SELECT count(*) FROM cells WHERE checkpoint = ?", (checkpoint.id,)
    ).fetchone()
    if known == len(checkpoint.cells):
        return
    connection.execute("DELETE FROM cells WHERE checkpoint = ?", (checkpoint.id,))
    connection.executemany(
        "INSERT INTO cells VALUES (?, ?, ?, ?)",
        [
            (checkpoint.id, position, storable(cell.source), json.dumps(cells.pack(cell)))
            for position, cell in enumerate(checkpoint.cells)
        ],
    )


def read_checkpoints(
    connection: sqlite3.Connection, timeline_id: str, read_variables: ReadVariables
) -> list[Checkpoint]:
    """The checkpoints of a timeline by number; their variables are read when asked for."""
    captures: dict[str, list[Capture]] = {}
    for id, kind, engine, state, size, ref, error, notes, details in connection.execute(
        "SELECT checkpoint, kind, engine, state, bytes, ref, error, not_captured, details"
        " FROM captures WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)"
        " ORDER BY checkpoint, position",
        (timeline_id,),
    ):
        not_captured = tuple(Note(*note) for note in json.loads(notes))
        captures.setdefault(id, []).append(
            Capture(kind, engine, state, size, ref, error, not_captured, json.loads(details))
        )
    ran: dict[str, list[cells.Cell]] = {}
    for id, source, details in connection.execute(
        "SELECT checkpoint, source, details FROM cells"
        " WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)"
        " ORDER BY checkpoint, position",
        (timeline_id,),
    ):
        ran.setdefault(id, []).append(cells.unpack(json.loads(details), source))
    found = connection.execute(
        "SELECT id, number, parent, created_at, comment, label, pinned, is_auto, reason, code,"
        " epoch, incarnation, execution_count, cell_id, msg_id"
        " FROM checkpoints WHERE timeline = ? ORDER BY number",
        (timeline_id,),
    )
    return [
        Checkpoint(
            id=row[0],
            number=row[1],
            parent=row[2],
            created_at=datetime.fromisoformat(row[3]),
            comment=row[4],
            label=row[5],
            pinned=bool(row[6]),
            is_auto=bool(row[7]),
            reason=row[8],
            code=row[9],
            coordinate=Coordinate(*row[10:]),
            captures=tuple(captures.get(row[0], ())),
            variables=StoredVariables(row[0], read_variables),
            cells=tuple(ran.get(row[0], ())),
        )
        for row in found
    ]


def pack_variables(variables: Mapping[str, Summary]) -> bytes:
    """Summaries as they are stored: JSON, compressed lightly."""
    return zlib.compress(json.dumps(dict(variables)).encode(), 1)


def unpack_variables(data: bytes) -> dict[str, Summary]:
    """The reverse of ``pack_variables``."""
    variables: dict[str, Summary] = json.loads(zlib.decompress(data))
    return variables


class StoredVariables(Mapping[str, Summary]):
    """The variables of a checkpoint of an earlier time, read when somebody asks for them."""

    def __init__(self, checkpoint_id: str, read: ReadVariables) -> None:
        self._id = checkpoint_id
        self._read = read
        self._found: Mapping[str, Summary] | None = None

    def _all(self) -> Mapping[str, Summary]:
        if self._found is None:
            self._found = self._read(self._id)
        return self._found

    def __getitem__(self, name: str) -> Summary:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
