"""Whether the database holds what was written into it.

SQLite checks the structure of its pages; a byte of text in one can change without its notice. So
each checkpoint's row has a digest beside it (``rows.Seal``), and its variables are zlib data,
which carries a checksum of its own.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from datetime import datetime

from kernel_runtime.store import rows
from kernel_runtime.store.columns import Connection
from kernel_runtime.timeline.model import Summary

_DAMAGE = (ValueError, TypeError, KeyError, sqlite3.Error, zlib.error)


def problems(connection: Connection) -> Iterator[str]:
    """Say what is wrong, as sentences; nothing if all is well. Reads the whole database."""
    try:
        yield from (
            f"the database's structure: {text}"
            for (text,) in connection.execute("PRAGMA integrity_check(20)")
            if text != "ok"
        )
        orphans = connection.execute("PRAGMA foreign_key_check").fetchall()
        if orphans:
            yield f"the database: {len(orphans)} rows belong to nothing"
        timelines = connection.execute("SELECT id, created_at FROM timelines").fetchall()
    except sqlite3.Error as error:
        yield f"the database: {error}"
        return
    for id, created_at in timelines:
        try:
            datetime.fromisoformat(created_at)
            yield from _timeline_at_rest(connection, id)
        except _DAMAGE as error:
            yield f"the database: session {str(id)[:12]!r} cannot be read ({error})"


def _timeline_at_rest(connection: Connection, id: str) -> list[str]:
    """Read in one transaction: a kernel may write meanwhile."""
    connection.execute("BEGIN")
    try:
        return list(_timeline(connection, id))
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _timeline(connection: Connection, id: str) -> Iterator[str]:
    def read(checkpoint_id: str) -> dict[str, Summary]:
        row = connection.execute(
            "SELECT variables FROM checkpoints WHERE id = ?", (checkpoint_id,)
        ).fetchone()
        return rows.unpack_variables(row[0], connection.columns, checkpoint_id)

    checkpoints = rows.read_checkpoints(connection, id, read)
    seals = rows.read_seals(connection, id)
    for checkpoint in checkpoints:
        name = f"the database: checkpoint #{checkpoint.number} of session {id[:12]}"
        seal = seals.get(checkpoint.id)
        if seal is not None and not connection.columns.is_mark_of(
            seal.digest, rows.digest_of_row(checkpoint, seal.signature)
        ):
            yield f"{name}: its record is not what was written"
        try:
            json.dumps(dict(checkpoint.variables))
        except _DAMAGE as error:
            yield f"{name}: its variables cannot be read ({error})"
    known = {checkpoint.id for checkpoint in checkpoints}
    row = connection.execute(
        "SELECT head, last_safety, next_number FROM timelines WHERE id = ?", (id,)
    ).fetchone()
    if row is None:  # deleted since the list was read
        return
    head, last_safety, next_number = row
    if head is not None and head not in known:
        yield f"the database: session {id[:12]} is at a checkpoint that does not exist"
    if last_safety is not None and last_safety not in known:
        yield f"the database: session {id[:12]} could be undone to what does not exist"
    if checkpoints and checkpoints[-1].number >= next_number:
        yield f"the database: session {id[:12]} would number a checkpoint twice"
