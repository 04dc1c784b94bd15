"""The store's database: timelines, checkpoints and captures in SQLite.

A change is one transaction: a checkpoint becomes visible as a whole or not at all. Whoever calls
must have written (and, where it matters, synced) what a capture's ``ref`` points at before it is
saved as ready.

One Store may be used from several threads; the supervisor writes from one worker thread and hands
over immutable values only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_runtime.later import dataclass
from kernel_runtime.store import filing, locks, reserve, rows
from kernel_runtime.store.columns import seal_rows
from kernel_runtime.store.database_file import DatabaseFile
from kernel_runtime.store.encryption import is_encrypted
from kernel_runtime.store.errors import StoreError, TimelineInUse
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.loading import after_restart, whole
from kernel_runtime.store.origins import Origin
from kernel_runtime.store.paths import private_directory
from kernel_runtime.store.signatures import Signatures
from kernel_runtime.timeline.documents import Looks, Verdict
from kernel_runtime.timeline.model import (
    Capture,
    Checkpoint,
    Summary,
    new_id,
)
from kernel_runtime.timeline.tree import Timeline, TimelineState

if TYPE_CHECKING:
    from kernel_runtime.store.groups import Groups


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
    return reserve.used_for(directory, lambda: Store(DatabaseFile(directory), keys or Keys()))


class Store:
    """An open database. Made by ``open_store``."""

    def __init__(self, file: DatabaseFile, keys: Keys) -> None:
        self.directory = file.path.parent
        self._file = file
        self._connection = file.connection
        self._keys = keys
        self._signatures = Signatures(file, keys)
        self._timelines: set[str] = set()

    def close(self) -> None:
        """Give back the timelines and close the database; the second call does nothing."""
        with self._file.closing():
            for id in self._timelines:
                locks.release(self._lock_path(id))
            self._timelines.clear()

    @property
    def journal(self) -> str:
        """As ``PRAGMA journal_mode`` names it: ``wal``, ``truncate``."""
        return self._file.journal

    # -- timelines --------------------------------------------------------------------------

    def load_timeline(self, path: str | None, kernel_name: str, *, epoch: str) -> Timeline:
        """The timeline of a notebook and kernel name, or a new one, which this process then has.

        Without a path it is always a new one. Frozen processes of other supervisors (``epoch``)
        are gone, so their captures come back as evicted; filesystem captures stay as they are.
        Raises TimelineInUse if another kernel has it.
        """
        raw_path = None if path is None else os.fsencode(os.path.realpath(path))
        with self._file.transaction():
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
        with self._file.transaction():
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
        self._signatures.note_doubtful(state.id, found)
        timeline = Timeline(*whole(state, found))
        for checkpoint in list(timeline):
            captures = tuple(after_restart(c, checkpoint, epoch) for c in checkpoint.captures)
            if captures != checkpoint.captures:
                changed = timeline.replace(checkpoint.id, captures=captures)
                keys = self._signatures.keys_for(changed)
                rows.write_captures(self._connection, state.id, changed, keys)
        return timeline

    def timelines(self) -> list[TimelineInfo]:
        """All timelines of the store, oldest first."""
        with self._file.reading():
            found = self._connection.execute(
                "SELECT id, path, kernel_name, created_at,"
                " (SELECT count(*) FROM checkpoints WHERE timeline = timelines.id), looks, origin"
                " FROM timelines ORDER BY rowid"
            ).fetchall()
        with self._file.decoding():
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
        with self._file.transaction():
            row = self._connection.execute(
                "SELECT id, head, last_safety, next_number FROM timelines WHERE id = ?", (id,)
            ).fetchone()
            if row is None:
                raise StoreError(f"The store {self.directory} has no timeline {id} any more.")
            found = self._checkpoints(id)
            return Timeline(*whole(TimelineState(*row), found))

    def forget(self, id: str) -> Purged | None:
        """Delete a timeline with all of its checkpoints; None if a kernel has it.

        Works on a full disk too. Raises StoreError.
        """
        return reserve.used_for(self.directory, lambda: self._purge(id))

    def purge(self) -> list[Purged]:
        """Delete the timelines without a notebook whose supervisor is gone."""
        with self._file.reading():
            found = self._connection.execute(
                "SELECT id FROM timelines WHERE path IS NULL AND looks IS NULL AND origin IS NULL"
            ).fetchall()
        return [gone for (id,) in found if (gone := self._purge(id)) is not None]

    def _purge(self, id: str) -> Purged | None:
        lock = self._lock_path(id)
        if not locks.acquire(lock):
            return None
        try:
            with self._file.transaction(durable=True):
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
        with self._file.transaction():
            return filing.settle(self._connection, present, kernel_name, self._has)

    def renamed(self, path: str, kernel_name: str) -> str | None:
        """Where the notebook is now that had this path, if that is known."""
        with self._file.reading():
            return filing.renamed(self._connection, os.path.realpath(path), kernel_name)

    def note_looks(self, id: str, looks: Looks) -> None:
        """Keep what a timeline's notebook looks like; its path too, unless that is another's."""
        with self._file.transaction():
            filing.note_looks(self._connection, id, looks)

    def file_under(self, id: str, path: str | None, origin: Origin | None) -> None:
        """Give a timeline a notebook's path and an origin. Whatever had the path is set aside.

        Raises TimelineInUse if a kernel has one of the two, StoreError.
        """
        with self._file.transaction():
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
        with self._file.transaction(durable=True):
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
        with self._file.transaction(durable=any(not c.is_auto for c in given)):
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
                keys = self._signatures.keys_for(checkpoint)
                rows.write_checkpoint(self._connection, state.id, checkpoint, keys)

    def rewrite(self, state: TimelineState, checkpoints: Iterable[Checkpoint]) -> None:
        """Write these checkpoints anew, whole, also what of them never changes otherwise.

        What was in their rows is overwritten in the database's pages, not just let go of; see
        ``write_anew``. Works on a full disk. Raises StoreError, and then nothing was written.
        """
        given = [replace(one, variables=dict(one.variables)) for one in checkpoints]
        self._file.overwrite_deleted()
        self.save(state, given, deleted_ids=[one.id for one in given])

    def references(self, kind: str, engine: str | None = None) -> set[str]:
        """Every ``ref`` that some capture of that kind (and engine) still needs, in all
        timelines; what they do not name any more may be deleted, see ``settle``."""
        self.settle()
        with self._file.reading():
            found = self._connection.execute(
                "SELECT ref FROM captures WHERE kind = ?1 AND (?2 IS NULL OR engine = ?2)"
                " AND ref IS NOT NULL AND state IN ('ready', 'pending')",
                (kind, engine),
            )
            stored = [ref for (ref,) in found]
        with self._file.decoding():
            return {name for ref in stored if (name := self._connection.columns.read_ref(ref))}

    def settle(self) -> None:
        """Make what was committed so far outlive a power cut: see ``DatabaseFile.settle``."""
        self._file.settle()

    def write_anew(self) -> None:
        """Leave nothing in the file that was deleted: see ``DatabaseFile.write_anew``."""
        self._file.write_anew()

    def variables(self, checkpoint_id: str) -> Mapping[str, Summary]:
        """The summaries that were saved with a checkpoint; empty if it is gone."""
        with self._file.reading():
            row = self._connection.execute(
                "SELECT variables FROM checkpoints WHERE id = ?", (checkpoint_id,)
            ).fetchone()
        with self._file.decoding():
            columns = self._connection.columns
            return rows.unpack_variables(row[0], columns, checkpoint_id) if row else {}

    def problems(self) -> list[str]:
        """What is wrong with the database, as sentences. Reads all of it."""
        return self._file.problems()

    def seal_rows(self) -> int:
        """Seal what was written before the store was encrypted; the number of values.

        The file is written anew, so that nothing of them is left in its free pages. No other
        process may use the store. Raises StoreError; what is sealed by then stays so.
        """
        with self._file.transaction(durable=True):
            count = seal_rows(self._connection)
        self.write_anew()
        return count

    # -- groups -----------------------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """The groups of sessions."""
        from kernel_runtime.store.groups import Groups  # rarely needed, long to import

        return Groups(self._file)

    # -- signatures -------------------------------------------------------------------------

    def authenticate(self, timeline_id: str, checkpoint: Checkpoint) -> None:
        """Return if a session of this user's has stored it: see ``Signatures.authenticate``."""
        self._signatures.authenticate(timeline_id, checkpoint)

    def trust(self, timeline_id: str) -> None:
        """Sign all checkpoints of a timeline as they are now: a person trusts what they name.

        Raises StoreError, KeyUnusable, and then nothing was signed.
        """
        self._keys.sign("", b"")  # without a key nothing is begun
        with self._file.transaction(durable=True):
            self._signatures.sign(timeline_id, self._checkpoints(timeline_id))

    # -- details ----------------------------------------------------------------------------

    def _lock_path(self, timeline_id: str) -> Path:
        return self.directory.resolve() / "locks" / f"{timeline_id}.lock"

    def _checkpoints(self, timeline_id: str) -> list[Checkpoint]:
        with self._file.decoding():
            return rows.read_checkpoints(self._connection, timeline_id, self.variables)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
