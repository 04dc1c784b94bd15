"""Checkpoints and captures as rows of the store's tables. Called by ``database`` only.

Each function works within the transaction of its caller.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.keys import Keys, KeyUnusable
from kernel_runtime.timeline import cells
from kernel_runtime.timeline.model import Capture, Checkpoint, Coordinate, Note, Summary
from kernel_runtime.timeline.text import storable

PURPOSE = "checkpoint 1"
"""Of the signatures of rows."""

ReadVariables = Callable[[str], Mapping[str, Summary]]


def write_checkpoint(
    connection: sqlite3.Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    """Write a new checkpoint, or what can change of a known one; see ``write_captures``."""
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
                _utc(checkpoint),
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
    write_captures(connection, timeline_id, checkpoint, keys)
    _write_cells(connection, checkpoint)


def write_captures(
    connection: sqlite3.Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    """Write the captures of a checkpoint in the place of those that were there, and sign them.

    keys: None leaves the signature as it was, which then does not fit what was altered.
    """
    _write_seal(connection, timeline_id, checkpoint, keys)
    connection.execute("DELETE FROM captures WHERE checkpoint = ?", (checkpoint.id,))
    connection.executemany(
        "INSERT INTO captures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (checkpoint.id, position, *_capture_row(capture))
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


@dataclass(frozen=True)
class Seal:
    """What was written beside a checkpoint's row; ``signature`` is None where no key was there."""

    digest: str
    signature: str | None


def read_seals(connection: sqlite3.Connection, timeline_id: str) -> dict[str, Seal]:
    """By checkpoint; one that an older version of the project wrote has none."""
    return {
        id: Seal(digest, signature)
        for id, digest, signature in connection.execute(
            "SELECT checkpoint, digest, signature FROM seals"
            " WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)",
            (timeline_id,),
        )
    }


def signed_text(timeline_id: str, checkpoint: Checkpoint) -> bytes:
    """What the signature covers: which data belongs to which checkpoint."""
    refs = sorted([c.kind, c.engine, c.ref] for c in checkpoint.captures if c.ref and c.is_durable)
    return json.dumps([timeline_id, checkpoint.id, checkpoint.number, refs]).encode("ascii")


def digest_of_row(checkpoint: Checkpoint, signature: str | None) -> str:
    """Over all that is stored of a checkpoint but its variables, which zlib checks."""
    changing = {"variables": None, "captures": [_capture_row(c) for c in checkpoint.captures]}
    whole = {**vars(checkpoint), "coordinate": vars(checkpoint.coordinate), **changing}
    whole |= {"created_at": _utc(checkpoint), "signature": signature}
    return digest_of(json.dumps(whole, default=repr).encode("ascii"))


def _write_seal(
    connection: sqlite3.Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    signature = None
    if keys is None:
        row = connection.execute(
            "SELECT signature FROM seals WHERE checkpoint = ?", (checkpoint.id,)
        ).fetchone()
        signature = row[0] if row else None
    else:
        # Without a key the session is recorded all the same; its namespaces are not loaded again.
        with contextlib.suppress(KeyUnusable):
            signature = keys.sign(PURPOSE, signed_text(timeline_id, checkpoint))
    connection.execute(
        "INSERT OR REPLACE INTO seals VALUES (?, ?, ?)",
        (checkpoint.id, digest_of_row(checkpoint, signature), signature),
    )


def _utc(checkpoint: Checkpoint) -> str:
    return checkpoint.created_at.astimezone(timezone.utc).isoformat()


def _capture_row(capture: Capture) -> tuple[object, ...]:
    return (
        capture.kind,
        capture.engine,
        capture.state,
        capture.bytes,
        capture.ref,
        capture.error,
        json.dumps([[n.kind, n.subject, n.detail] for n in capture.not_captured]),
        json.dumps(dict(capture.details)),
    )


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
