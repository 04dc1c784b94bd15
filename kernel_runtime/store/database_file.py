"""The SQLite file below the store's database: opened, read, changed in transactions, synced.

Journal: WAL, so that readers and the writers of other kernels do not wait for each other; on
network filesystems, where WAL does not work, a truncated rollback journal. ``synchronous`` is
NORMAL: in WAL mode a commit then waits for no disk, a power cut can take the last commits but
never consistency, and what an automatic checkpoint lives in (a frozen process) does not outlive a
power cut anyway. A commit that holds a checkpoint which the user asked for is synced (FULL).
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kernel_runtime.store import filesystem_type, integrity, reserve, schema
from kernel_runtime.store.cipher import Altered
from kernel_runtime.store.columns import Columns, Connection
from kernel_runtime.store.encryption import cipher_of
from kernel_runtime.store.errors import DatabaseDamaged, StoreError, refused
from kernel_runtime.store.paths import private_file, sync

FILE_NAME: Final = "timelines.sqlite"
BUSY_TIMEOUT_S: Final = 5.0


class DatabaseFile:
    """An open database. Several threads may use it; one at a time does."""

    def __init__(self, directory: Path) -> None:
        """Open it, or make a new one.

        Raises StoreError if it cannot be used or was written by a newer version; DatabaseDamaged.
        """
        self.path = directory / FILE_NAME
        self._log = directory / f"{FILE_NAME}-wal"
        columns = Columns(cipher_of(directory))
        if self._is_emptied():
            raise DatabaseDamaged(
                self.path, "it is empty, and content that it listed is still there"
            )
        # SQLite gives its journal files the mode of the database file.
        private_file(self.path)
        self.connection = sqlite3.connect(
            self.path,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
        self.connection.columns = columns
        self._lock = threading.RLock()
        self._is_uncertain = False
        try:
            self.journal = self._set_up()
        except (sqlite3.Error, OSError) as error:
            self.connection.close()
            raise _failed(self.path, error) from error
        except BaseException:
            self.connection.close()
            raise
        self._syncs_by_itself = self.journal != "wal"

    def _set_up(self) -> str:
        """Prepare the tables; return the journal's mode as ``PRAGMA journal_mode`` names it."""
        wal = not filesystem_type.is_network(self.path.parent)
        asked = f"PRAGMA journal_mode = {'WAL' if wal else 'TRUNCATE'}"
        # what SQLite could do there, not what it was told to do
        journal = str(self.connection.execute(asked).fetchone()[0])
        self.connection.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'wal' else 'FULL'}")
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.execute(f"PRAGMA journal_size_limit = {16 << 20}")
        schema.prepare(self.connection, self.path)
        return journal

    def _is_emptied(self) -> bool:
        """Whether there is a database without a byte beside blobs: SQLite would take it for a new
        one, and the next collection would free all of them."""
        parts = (self.path, self._log)
        if not self.path.exists() or any(part.stat().st_size for part in parts if part.exists()):
            return False
        directory = self.path.parent
        places = (directory, directory / "namespaces")
        return any(True for place in places for _ in place.glob("blobs/*/*"))

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close it after what is done within, while no other thread uses it."""
        with self._lock:
            yield
            self.connection.close()

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """What was read is made sense of. Raises DatabaseDamaged where there is none."""
        try:
            yield
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise DatabaseDamaged(self.path, error) from error

    @contextmanager
    def reading_and_decoding(self) -> Iterator[None]:
        """Statements that change nothing, and making sense of what they give. Raises StoreError."""
        with self.decoding(), self.reading():
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Statements that change nothing, by one thread at a time. Raises StoreError."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, Altered) as error:
                raise _failed(self.path, error) from error

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """All of what is done within, or nothing. durable: a power cut does not take it back.

        Raises StoreError.
        """
        with self.reading():
            # It can be changed between transactions only.
            syncs_more = durable and not self._syncs_by_itself
            if syncs_more:
                self.connection.execute("PRAGMA synchronous = FULL")
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._is_uncertain = True
                    self.connection.execute("COMMIT")
                    self._is_uncertain = False
                except BaseException:
                    # SQLite rolls back by itself after some errors (a full disk): the first error
                    # must not be hidden by a second.
                    if self.connection.in_transaction:
                        self.connection.execute("ROLLBACK")
                    raise
            finally:
                if syncs_more:
                    self.connection.execute("PRAGMA synchronous = NORMAL")

    # -- the disk --------------------------------------------------------------------------

    def settle(self) -> None:
        """Make what was committed so far outlive a power cut. Raises StoreError.

        Must be called between a commit and the deletion of what was needed before it: else the
        old rows could come back without their data.
        """
        if not self._syncs_by_itself:
            reserve.used_for(self.path.parent, self._settle)

    def _settle(self) -> None:
        if self._is_uncertain:
            # What a failed commit left in the log could come to life when that is read anew.
            # The next commit is written over it.
            with self.transaction():
                self.connection.execute("UPDATE timelines SET next_number = next_number")
        try:
            # SQLite holds no lock on this file that closing it here would drop.
            with suppress(FileNotFoundError):
                sync(self._log)
            sync(self.path.parent)
        except OSError as error:
            raise refused(self.path, error) from error

    def overwrite_deleted(self) -> None:
        """From now on, what is deleted is overwritten in the file's pages, not just let go of."""
        with self.reading():
            self.connection.execute("PRAGMA secure_delete = ON")

    def problems(self) -> list[str]:
        """What is wrong with the database, as sentences. Reads all of it."""
        with self._lock:
            return list(integrity.problems(self.connection))

    def write_anew(self) -> None:
        """Write the database's file anew, so that nothing that was deleted is left in it.

        Needs twice its room for a moment, and that nobody else is in a transaction. Raises
        StoreError; the file is as it was.
        """
        with self.reading():
            busy = self._fold_log()
            self.connection.execute("VACUUM")
            if self._fold_log() or busy:
                raise refused(
                    self.path,
                    "another program reads it, so its log could not be emptied",
                    "Do it again when no kernel runs.",
                )

    def _fold_log(self) -> bool:
        """Bring the log into the file and cut it to nothing; whether somebody was in the way."""
        if self._syncs_by_itself:
            return False
        (busy, _, _) = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)


def _failed(path: Path, error: sqlite3.Error | OSError | Altered) -> StoreError:
    """What to tell: that the file is damaged, or that it cannot be used now."""
    # SQLITE_CORRUPT and SQLITE_NOTADB, and text that is none; the codes themselves are to be had
    # from Python 3.11 on.
    damage = ("malformed", "not a database", "decode to UTF-8")
    if isinstance(error, Altered):
        return DatabaseDamaged(path, error)
    if isinstance(error, sqlite3.Error) and any(text in str(error) for text in damage):
        return DatabaseDamaged(path, error)
    if "database is locked" in str(error):
        return refused(
            path,
            f"another program has it locked, for more than {BUSY_TIMEOUT_S:.0f} seconds now",
            "Nothing was changed: try again; `fuser -v` with that path names the program.",
        )
    return refused(path, error)
