"""Checkpoints and captures as rows of the store's tables. Called by ``database`` only.

Each function works within the transaction of its caller.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone

from kernel_runtime.later import dataclass
from kernel_runtime.store.columns import Columns, Connection
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.keys import Keys, KeyUnusable
from kernel_runtime.timeline import cells
from kernel_runtime.timeline.model import Capture, Checkpoint, Coordinate, Note, Summary
from kernel_runtime.timeline.text import storable

PURPOSE = "checkpoint 1"
"""Of the signatures of rows."""

ReadVariables = Callable[[str], Mapping[str, Summary]]
Refs = list[tuple[str, str, str]]
"""Kind, engine and name of data."""


def write_checkpoint(
    connection: Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    """Write a new checkpoint, or what can change of a known one; see ``write_captures``."""
    stored = connection.columns
    changeable = (
        checkpoint.parent,
        stored.text("checkpoints.comment", checkpoint.comment, checkpoint.id),
        stored.text("checkpoints.label", checkpoint.label, checkpoint.id),
        checkpoint.pinned,
    )
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
                stored.text("checkpoints.code", checkpoint.code, checkpoint.id),
                coordinate.epoch,
                coordinate.incarnation,
                coordinate.execution_count,
                coordinate.cell_id,
                coordinate.msg_id,
                pack_variables(checkpoint.variables, connection.columns, checkpoint.id),
            ),
        )
    write_captures(connection, timeline_id, checkpoint, keys)
    _write_cells(connection, checkpoint)


def write_captures(
    connection: Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    """Write the captures of a checkpoint in the place of those that were there, and sign them.

    keys: None leaves the signature as it was, which then does not fit what was altered.
    """
    _write_seal(connection, timeline_id, checkpoint, keys)
    connection.execute("DELETE FROM captures WHERE checkpoint = ?", (checkpoint.id,))
    connection.executemany(
        "INSERT INTO captures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                checkpoint.id,
                position,
                *_stored(connection.columns, checkpoint.id, position, capture),
            )
            for position, capture in enumerate(checkpoint.captures)
        ],
    )


def _write_cells(connection: Connection, checkpoint: Checkpoint) -> None:
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
            (
                *(row := (checkpoint.id, position)),
                connection.columns.text("cells.source", storable(cell.source), *row),
                connection.columns.text("cells.details", json.dumps(cells.pack(cell)), *row),
            )
            for position, cell in enumerate(checkpoint.cells)
        ],
    )


def read_checkpoints(
    connection: Connection, timeline_id: str, read_variables: ReadVariables
) -> list[Checkpoint]:
    """The checkpoints of a timeline by number; their variables are read when asked for."""
    read = connection.columns.read
    captures: dict[str, list[Capture]] = {}
    for id, at, kind, engine, state, size, ref, error, notes, details in connection.execute(
        "SELECT checkpoint, position, kind, engine, state, bytes, ref, error, not_captured, details"
        " FROM captures WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)"
        " ORDER BY checkpoint, position",
        (timeline_id,),
    ):
        notes = json.loads(read("captures.not_captured", notes, id, at))
        captures.setdefault(id, []).append(
            Capture(
                kind,
                engine,
                state,
                size,
                connection.columns.read_ref(ref),
                read("captures.error", error, id, at),
                tuple(Note(*note) for note in notes),
                json.loads(read("captures.details", details, id, at)),
            )
        )
    ran: dict[str, list[cells.Cell]] = {}
    for id, at, source, details in connection.execute(
        "SELECT checkpoint, position, source, details FROM cells"
        " WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)"
        " ORDER BY checkpoint, position",
        (timeline_id,),
    ):
        told = json.loads(read("cells.details", details, id, at))
        ran.setdefault(id, []).append(cells.unpack(told, read("cells.source", source, id, at)))
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
            comment=read("checkpoints.comment", row[4], row[0]),
            label=read("checkpoints.label", row[5], row[0]),
            pinned=bool(row[6]),
            is_auto=bool(row[7]),
            reason=row[8],
            code=read("checkpoints.code", row[9], row[0]),
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


def read_seals(connection: Connection, timeline_id: str) -> dict[str, Seal]:
    """By checkpoint; one that an older version of the project wrote has none."""
    return {
        id: Seal(digest, connection.columns.read("seals.signature", signature, id))
        for id, digest, signature in connection.execute(
            "SELECT checkpoint, digest, signature FROM seals"
            " WHERE checkpoint IN (SELECT id FROM checkpoints WHERE timeline = ?)",
            (timeline_id,),
        )
    }


def signed_text(timeline_id: str, checkpoint: Checkpoint, refs: Refs) -> bytes:
    """What the signature covers: which data belongs to which checkpoint."""
    return json.dumps(
        [timeline_id, checkpoint.id, checkpoint.number, sorted(map(list, refs))]
    ).encode("ascii")


def durable_refs(captures: Iterable[Capture]) -> Refs:
    """Kind, engine and name of all data that outlives the supervisor."""
    return [(c.kind, c.engine, c.ref) for c in captures if c.ref and c.is_durable]


def read_signed(connection: Connection, checkpoint_id: str) -> tuple[str | None, Refs]:
    """The signature of a checkpoint and what of it is durable, both of one moment."""
    found = connection.execute(
        "SELECT seals.signature, kind, engine, state, ref FROM (SELECT ?1 AS id)"
        " LEFT JOIN seals ON seals.checkpoint = id LEFT JOIN captures ON captures.checkpoint = id",
        (checkpoint_id,),
    ).fetchall()
    columns = connection.columns
    signature = columns.read("seals.signature", found[0][0], checkpoint_id)
    return signature, durable_refs(
        Capture(kind, engine, state, ref=columns.read_ref(ref))
        for _, kind, engine, state, ref in found
        if kind is not None
    )


def digest_of_row(checkpoint: Checkpoint, signature: str | None) -> str:
    """Over all that is stored of a checkpoint but its variables, which zlib checks."""
    changing = {"variables": None, "captures": [_capture_row(c) for c in checkpoint.captures]}
    whole = {**vars(checkpoint), "coordinate": vars(checkpoint.coordinate), **changing}
    whole |= {"created_at": _utc(checkpoint), "signature": signature}
    return digest_of(json.dumps(whole, default=repr).encode("ascii"))


def _write_seal(
    connection: Connection, timeline_id: str, checkpoint: Checkpoint, keys: Keys | None
) -> None:
    signature = None
    if keys is None:
        row = connection.execute(
            "SELECT signature FROM seals WHERE checkpoint = ?", (checkpoint.id,)
        ).fetchone()
        signature = (
            connection.columns.read("seals.signature", row[0], checkpoint.id) if row else None
        )
    else:
        # Without a key the session is recorded all the same; its namespaces are not loaded again.
        with contextlib.suppress(KeyUnusable):
            text = signed_text(timeline_id, checkpoint, durable_refs(checkpoint.captures))
            signature = keys.sign(PURPOSE, text)
    connection.execute(
        "INSERT OR REPLACE INTO seals VALUES (?, ?, ?)",
        (
            checkpoint.id,
            connection.columns.mark(digest_of_row(checkpoint, signature)),
            connection.columns.text("seals.signature", signature, checkpoint.id),
        ),
    )


def _utc(checkpoint: Checkpoint) -> str:
    return checkpoint.created_at.astimezone(timezone.utc).isoformat()


def _capture_row(
    capture: Capture,
) -> tuple[str, str, str, int, str | None, str | None, str, str]:
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


def _stored(columns: Columns, id: str, at: int, capture: Capture) -> tuple[object, ...]:
    """A capture as it is written."""
    *plain, ref, error, notes, details = _capture_row(capture)
    return (
        *plain,
        columns.ref(ref),
        columns.text("captures.error", error, id, at),
        columns.text("captures.not_captured", notes, id, at),
        columns.text("captures.details", details, id, at),
    )


def pack_variables(variables: Mapping[str, Summary], columns: Columns, id: str) -> bytes:
    """Summaries of a checkpoint as they are stored: JSON, compressed lightly, then sealed."""
    packed = zlib.compress(json.dumps(dict(variables)).encode(), 1)
    return columns.data("checkpoints.variables", packed, id)


def unpack_variables(data: bytes, columns: Columns, id: str) -> dict[str, Summary]:
    """The reverse of ``pack_variables``."""
    packed = columns.read_data("checkpoints.variables", data, id)
    variables: dict[str, Summary] = json.loads(zlib.decompress(packed))
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
