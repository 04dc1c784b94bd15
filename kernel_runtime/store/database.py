"""The store's database: timelines, checkpoints and captures in SQLite.

A change is one transaction: a checkpoint becomes visible as a whole or not at all. Whoever calls
must have written (and, where it matters, synced) what a capture's ``ref`` points at before it is
saved as ready.

Journal: WAL, so that readers and the writers of other kernels do not wait for each other; on
network filesystems, where WAL does not work, a truncated rollback journal. ``synchronous`` is
NORMAL: in WAL mode a commit then waits for no disk, a power cut can take the last commits but
never consistency, and what an automatic checkpoint lives in (a frozen process) does not outlive a
power cut anyway. A commit that holds a checkpoint which the user asked for is synced (FULL).

One Store may be used from several threads; the supervisor writes from one worker thread and hands
over immutable values only.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kernel_runtime.store import filesystem_type, filing, integrity, locks, reserve, rows, schema
from kernel_runtime.store.cipher import Altered
from kernel_runtime.store.columns import Columns, Connection, seal_rows
from kernel_runtime.store.encryption import cipher_of, is_encrypted
from kernel_runtime.store.errors import DatabaseDamaged, StoreError, TimelineInUse, refused
from kernel_runtime.store.groups import Groups
from kernel_runtime.store.keys import Keys, KeyUnusable, NotAuthentic
from kernel_runtime.store.origins import Origin
from kernel_runtime.store.paths import private_directory, private_file, sync
from kernel_runtime.timeline.documents import Looks, Verdict
from kernel_runtime.timeline.model import (
    VOLATILE_ENGINES,
    Capture,
    Checkpoint,
    Summary,
    new_id,
)
from kernel_runtime.timeline.tree import Timeline, TimelineState

FILE_NAME: Final = "timelines.sqlite"
BUSY_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class TimelineInfo:
    """A timeline of the store, without its checkpoints."""

    id: str
    path: str | None
    kernel_name: str
    created_at: datetime
    checkpoints: int
    in_use: bool
    looks: Looks | None = None
    """Of its notebook; without a path: another notebook has taken its name since."""
    origin: Origin | None = None
    """Where it was imported from."""


@dataclass(frozen=True)
class Purged:
    """A timeline that is gone, with the captures whose data nobody may need any more."""

    id: str
    captures: tuple[Capture, ...]


def open_store(directory: Path, keys: Keys | None = None) -> Store:
    """Open the store in ``directory``, which is made if need be, with mode 0700.

    keys: with which rows are signed (default: the user's). Raises StoreError if it cannot be used,
    is not ours, or was written by a newer version; EncryptionLocked, DatabaseDamaged.
    """
    private_directory(directory)
    locks.ask(directory)
    private_directory(directory / "locks")
    reserve.keep(directory)
    return reserve.used_for(directory, lambda: _open(directory, keys or Keys()))


def _open(directory: Path, keys: Keys) -> Store:
    path = directory / FILE_NAME
    columns = Columns(cipher_of(directory))
    if _is_emptied(path):
        raise DatabaseDamaged(path, "it is empty, and content that it listed is still there")
    # SQLite gives its journal files the mode of the database file.
    private_file(path)
    connection = sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    connection.columns = columns
    try:
        wal = not filesystem_type.is_network(directory)
        asked = f"PRAGMA journal_mode = {'WAL' if wal else 'TRUNCATE'}"
        # what SQLite could do there, not what it was told to do
        journal = str(connection.execute(asked).fetchone()[0])
        wal = journal == "wal"
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if wal else 'FULL'}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {16 << 20}")
        schema.prepare(connection, path)
    except (sqlite3.Error, OSError) as error:
        connection.close()
        raise _failed(path, error) from error
    except BaseException:
        connection.close()
        raise
    return Store(directory, connection, keys, syncs_by_itself=not wal, journal=journal)


def _is_emptied(path: Path) -> bool:
    """Whether there is a database without a byte beside blobs: SQLite would take it for a new one,
    and the next collection would free all of them."""
    parts = (path, path.with_name(f"{path.name}-wal"))
    if not path.exists() or any(part.stat().st_size for part in parts if part.exists()):
        return False
    places = (path.parent, path.parent / "namespaces")
    return any(True for place in places for _ in place.glob("blobs/*/*"))


class Store:
    """An open database. Made by ``open_store``."""

    def __init__(
        self,
        directory: Path,
        connection: Connection,
        keys: Keys,
        *,
        syncs_by_itself: bool,
        journal: str,
    ) -> None:
        self.directory = directory
        self.journal = journal
        """As ``PRAGMA journal_mode`` names it: ``wal``, ``truncate``."""
        self._connection = connection
        self._keys = keys
        self._doubtful: set[str] = set()
        self._is_uncertain = False
        self._syncs_by_itself = syncs_by_itself
        self._lock = threading.RLock()
        self._timelines: set[str] = set()

    def close(self) -> None:
        """Give back the timelines and close the database; the second call does nothing."""
        with self._lock:
            for id in self._timelines:
                locks.release(self._lock_path(id))
            self._timelines.clear()
            self._connection.close()

    # -- timelines --------------------------------------------------------------------------

    def load_timeline(self, path: str | None, kernel_name: str, *, epoch: str) -> Timeline:
        """The timeline of a notebook and kernel name, or a new one, which this process then has.

        Without a path it is always a new one. Frozen processes of other supervisors (``epoch``)
        are gone, so their captures come back as evicted; filesystem captures stay as they are.
        Raises TimelineInUse if another kernel has it.
        """
        raw_path = None if path is None else os.fsencode(os.path.realpath(path))
        with self._transaction():
            row = None
            if raw_path is not None:
                row = self._connection.execute(
                    "SELECT id, head, last_safety, next_number FROM timelines"
                    " WHERE path = ? AND kernel_name = ?",
                    (raw_path, kernel_name),
                ).fetchone()
            state = TimelineState(*row) if row else TimelineState(new_id())
            with self._holding(state.id, str(path)):
                self._refuse_plain()
                if row is None:
                    self._connection.execute(
                        "INSERT INTO timelines (id, path, kernel_name, created_at, next_number)"
                        " VALUES (?, ?, ?, ?, ?)",
                        (state.id, raw_path, kernel_name, _now(), state.next_number),
                    )
                timeline = self._load(state, epoch)
        self._timelines.add(state.id)
        return timeline

    def take(self, id: str, *, epoch: str) -> Timeline:
        """A timeline that this process then has, also one that belongs to no notebook.

        Raises TimelineInUse if a kernel has it, StoreError if there is none.
        """
        with self._transaction():
            row = self._connection.execute(
                "SELECT id, head, last_safety, next_number FROM timelines WHERE id = ?", (id,)
            ).fetchone()
            if row is None:
                raise StoreError(f"The store {self.directory} has no timeline {id} any more.")
            with self._holding(id, f"session {id[:12]}"):
                timeline = self._load(TimelineState(*row), epoch)
        self._timelines.add(id)
        return timeline

    @contextmanager
    def _holding(self, id: str, name: str) -> Iterator[None]:
        """Take a timeline's lock; it stays taken unless what is done within fails."""
        lock = self._lock_path(id)
        if not locks.acquire(lock):
            raise TimelineInUse(name, locks.holder(lock))
        try:
            yield
        except BaseException:
            locks.release(lock)
            raise

    def _load(self, state: TimelineState, epoch: str) -> Timeline:
        """Read it, with captures that ended with their supervisor written as that."""
        found = self._checkpoints(state.id)
        self._note_doubtful(state.id, found)
        timeline = Timeline(*_whole(state, found))
        for checkpoint in list(timeline):
            captures = tuple(_after_restart(c, checkpoint, epoch) for c in checkpoint.captures)
            if captures != checkpoint.captures:
                changed = timeline.replace(checkpoint.id, captures=captures)
                keys = self._keys_for(changed)
                rows.write_captures(self._connection, state.id, changed, keys)
        return timeline

    def timelines(self) -> list[TimelineInfo]:
        """All timelines of the store, oldest first."""
        with self._reading():
            found = self._connection.execute(
                "SELECT id, path, kernel_name, created_at,"
                " (SELECT count(*) FROM checkpoints WHERE timeline = timelines.id), looks, origin"
                " FROM timelines ORDER BY rowid"
            ).fetchall()
        with self._decoding():
            return [
                TimelineInfo(
                    id=id,
                    path=None if path is None else os.fsdecode(path),
                    kernel_name=kernel_name,
                    created_at=datetime.fromisoformat(created_at),
                    checkpoints=count,
                    in_use=locks.is_held(self._lock_path(id)),
                    looks=filing.read_looks(self._connection, id, looks),
                    origin=Origin.from_json(origin) if origin else None,
                )
                for id, path, kernel_name, created_at, count, looks, origin in found
            ]

    def look_at(self, id: str) -> Timeline:
        """A timeline as it is now, to read only: a kernel may have it. Raises StoreError."""
        with self._transaction():
            row = self._connection.execute(
                "SELECT id, head, last_safety, next_number FROM timelines WHERE id = ?", (id,)
            ).fetchone()
            if row is None:
                raise StoreError(f"The store {self.directory} has no timeline {id} any more.")
            found = self._checkpoints(id)
            return Timeline(*_whole(TimelineState(*row), found))

    def forget(self, id: str) -> Purged | None:
        """Delete a timeline with all of its checkpoints; None if a kernel has it.

        Works on a full disk too. Raises StoreError.
        """
        return reserve.used_for(self.directory, lambda: self._purge(id))

    def purge(self) -> list[Purged]:
        """Delete the timelines without a notebook whose supervisor is gone."""
        with self._reading():
            found = self._connection.execute(
                "SELECT id FROM timelines WHERE path IS NULL AND looks IS NULL AND origin IS NULL"
            ).fetchall()
        return [gone for (id,) in found if (gone := self._purge(id)) is not None]

    def _purge(self, id: str) -> Purged | None:
        lock = self._lock_path(id)
        if not locks.acquire(lock):
            return None
        try:
            with self._transaction(durable=True):
                checkpoints = self._checkpoints(id)
                captures = [c for checkpoint in checkpoints for c in checkpoint.captures]
                self._connection.execute("DELETE FROM timelines WHERE id = ?", (id,))
        finally:
            locks.release(lock, remove=True)
        return Purged(id, tuple(captures))

    # -- notebooks --------------------------------------------------------------------------

    def decide(self, present: Looks, kernel_name: str) -> Verdict:
        """Decide which timeline a notebook goes on with and file that under its path.

        `load_timeline` finds it there afterwards. Raises StoreError; then nothing was changed.
        """
        with self._transaction():
            return filing.settle(self._connection, present, kernel_name, self._has)

    def renamed(self, path: str, kernel_name: str) -> str | None:
        """Where the notebook is now that had this path, if that is known."""
        with self._reading():
            return filing.renamed(self._connection, os.path.realpath(path), kernel_name)

    def note_looks(self, id: str, looks: Looks) -> None:
        """Keep what a timeline's notebook looks like; its path too, unless that is another's."""
        with self._transaction():
            filing.note_looks(self._connection, id, looks)

    def file_under(self, id: str, path: str | None, origin: Origin | None) -> None:
        """Give a timeline a notebook's path and an origin. Whatever had the path is set aside.

        Raises TimelineInUse if a kernel has one of the two, StoreError.
        """
        with self._transaction():
            filing.file_under(self._connection, id, path, origin, self._has)

    def insert(
        self,
        state: TimelineState,
        kernel_name: str,
        origin: Origin,
        checkpoints: Iterable[Checkpoint],
    ) -> None:
        """Write an imported timeline, which belongs to no notebook yet; signed if it is trusted.

        Raises StoreError.
        """
        keys = self._keys if origin.trusted else None
        with self._transaction(durable=True):
            self._connection.execute(
                "INSERT INTO timelines (id, kernel_name, created_at, head, next_number, origin)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    state.id,
                    kernel_name,
                    _now(),
                    state.head,
                    state.next_number,
                    origin.as_json(),
                ),
            )
            for checkpoint in checkpoints:
                rows.write_checkpoint(self._connection, state.id, checkpoint, keys)

    def _has(self, id: str) -> bool:
        """Whether a live process has a timeline."""
        return locks.is_held(self._lock_path(id))

    # -- checkpoints ------------------------------------------------------------------------

    def save(
        self,
        state: TimelineState,
        checkpoints: Iterable[Checkpoint] = (),
        *,
        deleted_ids: Iterable[str] = (),
    ) -> None:
        """Write a timeline's state, new or changed checkpoints and deletions, all or nothing.

        Deleting works on a full disk too. Raises StoreError, and then nothing was written.
        """
        given, gone = list(checkpoints), list(deleted_ids)
        if gone:
            reserve.used_for(self.directory, lambda: self._save(state, given, gone))
        else:
            self._save(state, given, gone)

    def _refuse_plain(self) -> None:
        """Nothing is written plain into a store that was encrypted since it was opened."""
        if not self._connection.columns.is_sealing and is_encrypted(self.directory):
            raise StoreError(
                f"The store {self.directory} was encrypted meanwhile. Nothing was written; start "
                "this program again."
            )

    def _save(self, state: TimelineState, given: list[Checkpoint], gone: list[str]) -> None:
        self._refuse_plain()
        with self._transaction(durable=any(not c.is_auto for c in given)):
            updated = self._connection.execute(
                "UPDATE timelines SET head = ?, last_safety = ?, next_number = ? WHERE id = ?",
                (state.head, state.last_safety, state.next_number, state.id),
            )
            if updated.rowcount != 1:
                raise StoreError(
                    f"The store {self.directory} has no timeline {state.id} any more: it was "
                    "deleted while this kernel ran. The session runs on; restart the kernel to "
                    "have its checkpoints stored again."
                )
            self._connection.executemany(
                "DELETE FROM checkpoints WHERE id = ?", [(id,) for id in gone]
            )
            for checkpoint in given:
                keys = self._keys_for(checkpoint)
                rows.write_checkpoint(self._connection, state.id, checkpoint, keys)

    def rewrite(self, state: TimelineState, checkpoints: Iterable[Checkpoint]) -> None:
        """Write these checkpoints anew, whole, also what of them never changes otherwise.

        What was in their rows is overwritten in the database's pages, not just let go of; see
        ``write_anew``. Works on a full disk. Raises StoreError, and then nothing was written.
        """
        given = [replace(one, variables=dict(one.variables)) for one in checkpoints]
        with self._reading():
            self._connection.execute("PRAGMA secure_delete = ON")
        self.save(state, given, deleted_ids=[one.id for one in given])

    def write_anew(self) -> None:
        """Write the database's file anew, so that nothing that was deleted is left in it.

        Needs twice its room for a moment, and that nobody else is in a transaction. Raises
        StoreError; the file is as it was.
        """
        with self._reading():
            busy = self._fold_log()
            self._connection.execute("VACUUM")
            if self._fold_log() or busy:
                raise refused(
                    self.directory / FILE_NAME,
                    "another program reads it, so its log could not be emptied",
                    "Do it again when no kernel runs.",
                )

    def _fold_log(self) -> bool:
        """Bring the log into the file and cut it to nothing; whether somebody was in the way."""
        if self._syncs_by_itself:
            return False
        (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)

    def references(self, kind: str, engine: str | None = None) -> set[str]:
        """Every ``ref`` that some capture of that kind (and engine) still needs, in all
        timelines; what they do not name any more may be deleted, see ``settle``."""
        self.settle()
        with self._reading():
            found = self._connection.execute(
                "SELECT ref FROM captures WHERE kind = ?1 AND (?2 IS NULL OR engine = ?2)"
                " AND ref IS NOT NULL AND state IN ('ready', 'pending')",
                (kind, engine),
            )
            stored = [ref for (ref,) in found]
        with self._decoding():
            return {name for ref in stored if (name := self._connection.columns.read_ref(ref))}

    def settle(self) -> None:
        """Make what was committed so far outlive a power cut. Raises StoreError.

        Must be called between a commit and the deletion of what was needed before it: else the
        old rows could come back without their data.
        """
        if not self._syncs_by_itself:
            reserve.used_for(self.directory, self._settle)

    def _settle(self) -> None:
        if self._is_uncertain:
            # What a failed commit left in the log could come to life when that is read anew.
            # The next commit is written over it.
            with self._transaction():
                self._connection.execute("UPDATE timelines SET next_number = next_number")
        try:
            # SQLite holds no lock on this file that closing it here would drop.
            with suppress(FileNotFoundError):
                sync(self.directory / f"{FILE_NAME}-wal")
            sync(self.directory)
        except OSError as error:
            raise refused(self.directory / FILE_NAME, error) from error

    def variables(self, checkpoint_id: str) -> Mapping[str, Summary]:
        """The summaries that were saved with a checkpoint; empty if it is gone."""
        with self._reading():
            row = self._connection.execute(
                "SELECT variables FROM checkpoints WHERE id = ?", (checkpoint_id,)
            ).fetchone()
        with self._decoding():
            columns = self._connection.columns
            return rows.unpack_variables(row[0], columns, checkpoint_id) if row else {}

    def problems(self) -> list[str]:
        """What is wrong with the database, as sentences. Reads all of it."""
        with self._lock:
            return list(integrity.problems(self._connection))

    def seal_rows(self) -> int:
        """Seal what was written before the store was encrypted; the number of values.

        The file is written anew, so that nothing of them is left in its free pages. No other
        process may use the store. Raises StoreError; what is sealed by then stays so.
        """
        with self._transaction(durable=True):
            count = seal_rows(self._connection)
        self.write_anew()
        return count

    # -- groups -----------------------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """The groups of sessions."""
        return Groups(self._connection, self._transaction, self._reading_and_decoding)

    # -- signatures -------------------------------------------------------------------------

    def authenticate(self, timeline_id: str, checkpoint: Checkpoint) -> None:
        """Return if a session of this user's has stored this checkpoint with these captures.

        Must be called before a session is loaded from one of its captures. Raises NotAuthentic,
        NotTrusted, KeyUnusable, StoreError.
        """
        with self._reading():
            row = self._connection.execute(
                "SELECT signature FROM seals WHERE checkpoint = ?", (checkpoint.id,)
            ).fetchone()
        with self._decoding():
            read = self._connection.columns.read
            signature = read("seals.signature", row[0], checkpoint.id) if row else None
        self._check(timeline_id, checkpoint, signature)

    def trust(self, timeline_id: str) -> None:
        """Sign all checkpoints of a timeline as they are now: a person trusts what they name.

        Raises StoreError, KeyUnusable, and then nothing was signed.
        """
        self._keys.sign("", b"")  # without a key nothing is begun
        with self._transaction(durable=True):
            for checkpoint in self._checkpoints(timeline_id):
                rows.write_captures(self._connection, timeline_id, checkpoint, self._keys)
                self._doubtful.discard(checkpoint.id)

    def _check(self, timeline_id: str, checkpoint: Checkpoint, signature: str | None) -> None:
        text = rows.signed_text(timeline_id, checkpoint)
        self._keys.check(rows.PURPOSE, text, signature, f"Checkpoint #{checkpoint.number}")

    def _note_doubtful(self, timeline_id: str, checkpoints: Iterable[Checkpoint]) -> None:
        """Those that somebody else wrote or altered must not be signed when they are saved."""
        seals = rows.read_seals(self._connection, timeline_id)
        for checkpoint in checkpoints:
            if checkpoint.has_durable_session:
                try:
                    seal = seals.get(checkpoint.id)
                    self._check(timeline_id, checkpoint, seal.signature if seal else None)
                except (NotAuthentic, KeyUnusable):
                    self._doubtful.add(checkpoint.id)

    def _keys_for(self, checkpoint: Checkpoint) -> Keys | None:
        return None if checkpoint.id in self._doubtful else self._keys

    # -- transactions -----------------------------------------------------------------------

    def _lock_path(self, timeline_id: str) -> Path:
        return self.directory.resolve() / "locks" / f"{timeline_id}.lock"

    def _checkpoints(self, timeline_id: str) -> list[Checkpoint]:
        with self._decoding():
            return rows.read_checkpoints(self._connection, timeline_id, self.variables)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise DatabaseDamaged(self.directory / FILE_NAME, error) from error

    @contextmanager
    def _reading_and_decoding(self) -> Iterator[None]:
        with self._decoding(), self._reading():
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, Altered) as error:
                raise _failed(self.directory / FILE_NAME, error) from error

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[None]:
        with self._reading():
            # It can be changed between transactions only.
            syncs_more = durable and not self._syncs_by_itself
            if syncs_more:
                self._connection.execute("PRAGMA synchronous = FULL")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._is_uncertain = True
                    self._connection.execute("COMMIT")
                    self._is_uncertain = False
                except BaseException:
                    # SQLite rolls back by itself after some errors (a full disk): the first error
                    # must not be hidden by a second.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            finally:
                if syncs_more:
                    self._connection.execute("PRAGMA synchronous = NORMAL")


def _whole(
    state: TimelineState, checkpoints: Sequence[Checkpoint]
) -> tuple[TimelineState, list[Checkpoint]]:
    """A timeline that can be read although a checkpoint of it is gone: its children move up."""
    known: set[str] = set()
    found: list[Checkpoint] = []
    for checkpoint in checkpoints:
        if checkpoint.parent is not None and checkpoint.parent not in known:
            checkpoint = replace(checkpoint, parent=found[-1].id if found else None)
        found.append(checkpoint)
        known.add(checkpoint.id)
    newest = found[-1] if found else None
    if state.head is not None and state.head not in known:
        state = replace(state, head=newest.id if newest else None)
    if state.last_safety is not None and state.last_safety not in known:
        state = replace(state, last_safety=None)
    if newest is not None and newest.number >= state.next_number:
        state = replace(state, next_number=newest.number + 1)
    return state, found


def _after_restart(capture: Capture, checkpoint: Checkpoint, epoch: str) -> Capture:
    """What is left of a capture when another supervisor than its own takes the timeline."""
    if checkpoint.coordinate.epoch == epoch:
        return capture
    if capture.engine in VOLATILE_ENGINES and capture.state in ("ready", "pending"):
        return replace(capture, state="evicted", bytes=0, error="the kernel was restarted")
    if capture.state == "pending":
        return replace(capture, state="failed", error="the kernel ended before it was ready")
    return capture


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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
