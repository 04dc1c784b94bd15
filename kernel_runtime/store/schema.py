"""The tables of the store and how an older database becomes a present one.

Version n of the schema is what the first n steps of ``MIGRATIONS`` make; it is kept in
``PRAGMA user_version``. A step and the record that it ran share one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.paths import private_file

APPLICATION_ID: Final = 0x74747276
"""In the file's header, so that a database of something else is never taken for ours."""

MIGRATIONS: Final[tuple[Sequence[str], ...]] = (
    (
        """
        CREATE TABLE timelines (
            id TEXT PRIMARY KEY,
            path BLOB,                   -- of the notebook, bytes as the system has them
            kernel_name TEXT NOT NULL,
            created_at TEXT NOT NULL,    -- UTC, ISO 8601
            head TEXT,
            last_safety TEXT,
            next_number INTEGER NOT NULL
        )
        """,
        "CREATE UNIQUE INDEX timeline_of ON timelines (path, kernel_name) WHERE path IS NOT NULL",
        """
        CREATE TABLE checkpoints (
            id TEXT PRIMARY KEY,
            timeline TEXT NOT NULL REFERENCES timelines (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            parent TEXT,
            created_at TEXT NOT NULL,
            comment TEXT NOT NULL,
            label TEXT,
            pinned INTEGER NOT NULL,
            is_auto INTEGER NOT NULL,
            reason TEXT NOT NULL,
            code TEXT NOT NULL,
            epoch TEXT NOT NULL,
            incarnation INTEGER NOT NULL,
            execution_count INTEGER NOT NULL,
            cell_id TEXT,
            msg_id TEXT,
            variables BLOB NOT NULL,     -- JSON, zlib
            UNIQUE (timeline, number)
        )
        """,
        """
        CREATE TABLE captures (
            checkpoint TEXT NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            kind TEXT NOT NULL,
            engine TEXT NOT NULL,
            state TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            ref TEXT,
            error TEXT,
            not_captured TEXT NOT NULL,  -- JSON
            details TEXT NOT NULL,       -- JSON
            PRIMARY KEY (checkpoint, position)
        ) WITHOUT ROWID
        """,
        "CREATE INDEX capture_refs ON captures (kind, engine, ref) WHERE ref IS NOT NULL",
    ),
    (
        """
        CREATE TABLE seals (
            checkpoint TEXT PRIMARY KEY REFERENCES checkpoints (id) ON DELETE CASCADE,
            digest TEXT NOT NULL,        -- over the whole row and its captures: damage
            signature TEXT               -- key id and HMAC over what is loaded: forgery
        ) WITHOUT ROWID
        """,
    ),
    (
        # What the notebook was like (timeline.documents.Looks), JSON. Without a path but with
        # looks: another notebook has taken the name; the history is kept.
        "ALTER TABLE timelines ADD COLUMN looks TEXT",
        # Of an imported timeline (store.origins.Origin), JSON.
        "ALTER TABLE timelines ADD COLUMN origin TEXT",
    ),
    (
        """
        CREATE TABLE cells (
            checkpoint TEXT NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
            position INTEGER NOT NULL,
            source TEXT NOT NULL,
            details TEXT NOT NULL,       -- JSON
            PRIMARY KEY (checkpoint, position)
        )
        """,
    ),
    (
        """
        CREATE TABLE groups (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            created_at TEXT NOT NULL,
            details TEXT NOT NULL        -- JSON: members, and what of a restore is not finished
        )
        """,
        """
        CREATE TABLE group_records (
            id TEXT PRIMARY KEY,
            of_group TEXT NOT NULL REFERENCES groups (id) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            created_at TEXT NOT NULL,
            kind TEXT NOT NULL,
            comment TEXT NOT NULL,
            details TEXT NOT NULL,       -- JSON: the checkpoint of each member
            UNIQUE (of_group, number)
        )
        """,
    ),
    # No table: a blob of namespaces/ may be a delta (store.deltas) since, and who does not know it
    # would sweep what it is one to.
    (),
)


def prepare(
    connection: sqlite3.Connection,
    path: Path,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
) -> None:
    """Bring the database to the present schema. ``connection`` commits by itself.

    An older one is copied first, to ``<name>.v<version>-backup`` beside it; the steps are one
    transaction. Raises OSError or sqlite3.Error where that fails, and nothing has changed; raises
    StoreError for a newer schema or a database of something else, which stays untouched.
    """
    # Two kernels may start at once: the version is read under the lock that protects the steps.
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (owner,) = connection.execute("PRAGMA application_id").fetchone()
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if owner != APPLICATION_ID and (owner or version or tables):
            raise StoreError(
                f"{path} is a database of something else. It was left alone; move it away, or "
                "choose another directory for the store."
            )
        if version > len(migrations):
            raise StoreError(
                f"{path} was written by a newer jupyter_timetravel (schema {version}, this one "
                f"knows {len(migrations)}). It was left alone; upgrade jupyter_timetravel, or "
                "choose another directory for the store."
            )
        if 0 < version < len(migrations):
            _back_up(path, path.with_name(f"{path.name}.v{version}-backup"))
        for step in migrations[version:]:
            for statement in step:
                connection.execute(statement)
        if version < len(migrations):
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _back_up(path: Path, copy: Path) -> None:
    """Copy a database that this process has locked for writing: readers see the last commit."""
    temporary = copy.with_name(f"{copy.name}.tmp")
    temporary.unlink(missing_ok=True)
    private_file(temporary)
    try:
        with (
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(temporary)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, which can be moved about
        temporary.replace(copy)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
