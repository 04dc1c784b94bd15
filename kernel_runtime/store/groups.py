"""Groups of sessions and their records in the store's tables.

A record is written in one transaction: it is there whole, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from kernel_runtime.store.database_file import DatabaseFile
from kernel_runtime.timeline.groups import (
    Alone,
    Group,
    GroupRecord,
    GroupRefused,
    Held,
    Member,
    Unfinished,
    UnknownGroup,
)
from kernel_runtime.timeline.model import new_id

_GROUP = "SELECT id, name, created_at, details FROM groups"


class Groups:
    """What ``Store.groups`` gives. Every method raises StoreError: then nothing was written."""

    def __init__(self, file: DatabaseFile) -> None:
        self._connection = file.connection
        self._transaction = file.transaction
        self._reading = file.reading_and_decoding

    def all(self) -> list[Group]:
        """By name."""
        with self._reading():
            found = self._connection.execute(f"{_GROUP} ORDER BY name").fetchall()
            return [_group(*row) for row in found]

    def get(self, name: str) -> Group:
        """Raises UnknownGroup."""
        with self._reading():
            row = self._connection.execute(f"{_GROUP} WHERE name = ?", (name,)).fetchone()
            if row is not None:
                return _group(*row)
        names = ", ".join(one.name for one in self.all()) or "none yet"
        raise UnknownGroup(
            f"There is no group {name!r}; there are: {names}. Nothing was done; "
            "`jupyter timetravel group create` makes one."
        )

    def create(self, name: str, members: Iterable[Member]) -> Group:
        """Raises GroupRefused if there is one of that name."""
        group = Group(new_id(), name, datetime.now(timezone.utc), tuple(members))
        with self._transaction(durable=True):
            inserted = self._connection.execute(
                "INSERT OR IGNORE INTO groups (id, name, created_at, details) VALUES (?, ?, ?, ?)",
                (group.id, name, group.created_at.isoformat(), _details(group)),
            )
        if not inserted.rowcount:
            raise GroupRefused(
                f"There is a group {name!r} already. Nothing was done; `jupyter timetravel group "
                f"add` gives it members, `group delete` takes it away."
            )
        return group

    def put(self, group: Group, record: GroupRecord | None = None) -> None:
        """Write what has changed of a group, with a new record or none, all or nothing.

        Raises UnknownGroup where it was deleted meanwhile.
        """
        with self._transaction(durable=True):
            updated = self._connection.execute(
                "UPDATE groups SET details = ? WHERE id = ?", (_details(group), group.id)
            )
            if not updated.rowcount:
                raise UnknownGroup(f"The group {group.name} was deleted meanwhile.")
            if record is not None:
                self._connection.execute(
                    "INSERT INTO group_records (id, of_group, number, created_at, kind, comment,"
                    " details) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        record.id,
                        group.id,
                        record.number,
                        record.created_at.isoformat(),
                        record.kind,
                        self._comment(record),
                        _record_details(record),
                    ),
                )

    def rewrite(self, records: Iterable[GroupRecord]) -> None:
        """Write comments and details of records that are there anew, all or nothing."""
        with self._transaction(durable=True):
            self._connection.executemany(
                "UPDATE group_records SET comment = ?, details = ? WHERE id = ?",
                [(self._comment(one), _record_details(one), one.id) for one in records],
            )

    def _comment(self, record: GroupRecord) -> str | bytes | None:
        return self._connection.columns.text("group_records.comment", record.comment, record.id)

    def delete(self, group: Group) -> None:
        """With its records; the members and their checkpoints stay."""
        with self._transaction(durable=True):
            self._connection.execute("DELETE FROM groups WHERE id = ?", (group.id,))

    def records(self, group: Group) -> list[GroupRecord]:
        """Oldest first."""
        with self._reading():
            found = self._connection.execute(
                "SELECT id, number, created_at, kind, comment, details FROM group_records"
                " WHERE of_group = ? ORDER BY number",
                (group.id,),
            ).fetchall()
            columns = self._connection.columns
            return [
                _record(id, number, at, kind, columns.read("group_records.comment", text, id), more)
                for id, number, at, kind, text, more in found
            ]


def _details(group: Group) -> str:
    value: dict[str, Any] = {
        "members": [asdict(one) for one in group.members],
        "alone": [asdict(one) for one in group.alone],
        "unfinished": asdict(group.unfinished) if group.unfinished is not None else None,
    }
    return json.dumps(value)


def _record_details(record: GroupRecord) -> str:
    members = {name: asdict(held) for name, held in record.members.items()}
    return json.dumps({"members": members, "missing": dict(record.missing)})


def _group(id: str, name: str, created_at: str, details: str) -> Group:
    value = json.loads(details)
    unfinished = value["unfinished"]
    return Group(
        id,
        name,
        datetime.fromisoformat(created_at),
        tuple(Member(**one) for one in value["members"]),
        tuple(Alone(**one) for one in value["alone"]),
        Unfinished(**unfinished) if unfinished else None,
    )


def _record(
    id: str, number: int, created_at: str, kind: Any, comment: str, details: str
) -> GroupRecord:
    value = json.loads(details)
    members = {name: Held(**held) for name, held in value["members"].items()}
    at = datetime.fromisoformat(created_at)
    return GroupRecord(id, number, at, kind, comment, members, value["missing"])
