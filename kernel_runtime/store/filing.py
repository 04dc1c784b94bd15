"""Under which notebook a timeline is filed. Called by ``database`` only.

Each function works within the transaction of its caller.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kernel_runtime.store.columns import Connection
from kernel_runtime.store.errors import StoreError, TimelineInUse
from kernel_runtime.store.notebooks import identity
from kernel_runtime.store.origins import Origin
from kernel_runtime.timeline.documents import Known, Looks, Verdict, judge

_SEARCHED: Final = 1000
"""Notebooks of one directory that are looked at for one that was renamed."""


def read_looks(connection: Connection, id: str, stored: str | bytes | None) -> Looks | None:
    """Of a timeline, as it is in the store; None if there is none or it cannot be read."""
    with suppress(ValueError):
        text: str | None = connection.columns.read("timelines.looks", stored, id)
        return Looks.from_json(text) if text else None
    return None


def _stored(connection: Connection, id: str, looks: str) -> str | bytes | None:
    return connection.columns.text("timelines.looks", looks, id)


def settle(
    connection: Connection,
    present: Looks,
    kernel_name: str,
    is_held: Callable[[str], bool],
) -> Verdict:
    """Judge, and write the outcome."""
    known = _known(connection, kernel_name, is_held)
    verdict = judge(present, known)
    if verdict.aside is not None:
        connection.execute("UPDATE timelines SET path = NULL WHERE id = ?", (verdict.aside,))
    if verdict.timeline is not None:
        old = next(one.looks for one in known if one.timeline == verdict.timeline)
        connection.execute(
            "UPDATE timelines SET path = ?, looks = ? WHERE id = ?",
            (
                os.fsencode(present.path),
                _stored(connection, verdict.timeline, present.after(old).as_json()),
                verdict.timeline,
            ),
        )
    return verdict


def _known(connection: Connection, kernel_name: str, is_held: Callable[[str], bool]) -> list[Known]:
    found = []
    for id, raw_path, text in connection.execute(
        "SELECT id, path, looks FROM timelines WHERE kernel_name = ?"
        " AND (path IS NOT NULL OR looks IS NOT NULL) ORDER BY rowid",
        (kernel_name,),
    ).fetchall():
        path = None if raw_path is None else os.fsdecode(raw_path)
        looks = read_looks(connection, id, text)
        there = path or (looks.path if looks else "")
        found.append(Known(id, path, looks, os.path.lexists(there), is_held(id)))
    return found


def renamed(connection: Connection, path: str, kernel_name: str) -> str | None:
    """Where a notebook is that had this path: noted while its kernel ran, or found beside it."""
    for id, known_path, text in connection.execute(
        "SELECT id, path, looks FROM timelines WHERE kernel_name = ? AND path IS NOT NULL"
        " ORDER BY rowid DESC",
        (kernel_name,),
    ).fetchall():
        looks, now = read_looks(connection, id, text), os.fsdecode(known_path)
        if looks is None:
            continue
        if path in looks.former and os.path.exists(now):
            return now
        if now == path and looks.file is not None:
            return _beside(path, looks.file)
    return None


def _beside(path: str, file: tuple[int, int]) -> str | None:
    with suppress(OSError), os.scandir(os.path.dirname(path)) as entries:
        names = [entry.path for entry in entries if entry.name.endswith(".ipynb")][:_SEARCHED]
        return next((one for one in names if identity(one) == file), None)
    return None


def note_looks(connection: Connection, id: str, looks: Looks) -> None:
    """Keep what a timeline's notebook looks like, and its path unless another one has that."""
    row = connection.execute(
        "SELECT path, looks, kernel_name FROM timelines WHERE id = ?", (id,)
    ).fetchone()
    if row is None:
        return
    path, text, kernel_name = row
    new = looks.after(read_looks(connection, id, text))
    raw = os.fsencode(new.path)
    taken = connection.execute(
        "SELECT 1 FROM timelines WHERE path = ? AND kernel_name = ? AND id != ?",
        (raw, kernel_name, id),
    ).fetchone()
    if path is None or taken:
        raw = path  # it was set aside meanwhile, or a kernel has begun a timeline there
    connection.execute(
        "UPDATE timelines SET path = ?, looks = ? WHERE id = ?",
        (raw, _stored(connection, id, new.as_json()), id),
    )


def file_under(
    connection: Connection,
    id: str,
    path: str | None,
    origin: Origin | None,
    is_held: Callable[[str], bool],
) -> None:
    """Give a timeline a path (None: as it is) and an origin; what had the path is set aside."""
    row = connection.execute(
        "SELECT kernel_name, looks FROM timelines WHERE id = ?", (id,)
    ).fetchone()
    if row is None:
        raise StoreError(f"There is no timeline {id[:12]} any more. Nothing was done.")
    if origin is not None:
        connection.execute("UPDATE timelines SET origin = ? WHERE id = ?", (origin.as_json(), id))
    if path is None:
        return
    raw = os.fsencode(os.path.realpath(path))
    other = connection.execute(
        "SELECT id, looks FROM timelines WHERE path = ? AND kernel_name = ? AND id != ?",
        (raw, row[0], id),
    ).fetchone()
    for one in (id, *(other[:1] if other else ())):
        if is_held(one):
            raise TimelineInUse(path, "")
    if other:
        looks = other[1] or _stored(connection, other[0], Looks(os.path.realpath(path)).as_json())
        connection.execute(
            "UPDATE timelines SET path = NULL, looks = ? WHERE id = ?", (looks, other[0])
        )
    # Whatever is in that notebook, somebody has said that it goes on with this timeline.
    new = replace(
        Looks(os.path.realpath(path)).after(read_looks(connection, id, row[1])), cells=None
    )
    connection.execute(
        "UPDATE timelines SET path = ?, looks = ? WHERE id = ?",
        (raw, _stored(connection, id, new.as_json()), id),
    )
