"""Who has stored a checkpoint: signatures of what a session may be loaded from."""

from __future__ import annotations

from collections.abc import Iterable

from kernel_runtime.store import rows
from kernel_runtime.store.database_file import DatabaseFile
from kernel_runtime.store.keys import Keys, KeyUnusable, NotAuthentic
from kernel_runtime.timeline.model import Checkpoint


class Signatures:
    """The signatures in one database, made and checked with one user's keys."""

    def __init__(self, file: DatabaseFile, keys: Keys) -> None:
        self._file = file
        self._keys = keys
        self._doubtful: set[str] = set()

    def authenticate(self, timeline_id: str, checkpoint: Checkpoint) -> None:
        """Return if a session of this user's has stored this checkpoint with these captures.

        Must be called before a session is loaded from one of its captures. Raises NotAuthentic,
        NotTrusted, KeyUnusable, StoreError.
        """
        with self._file.reading():
            row = self._file.connection.execute(
                "SELECT signature FROM seals WHERE checkpoint = ?", (checkpoint.id,)
            ).fetchone()
        with self._file.decoding():
            read = self._file.connection.columns.read
            signature = read("seals.signature", row[0], checkpoint.id) if row else None
        self._check(timeline_id, checkpoint, signature)

    def _check(self, timeline_id: str, checkpoint: Checkpoint, signature: str | None) -> None:
        text = rows.signed_text(timeline_id, checkpoint)
        self._keys.check(rows.PURPOSE, text, signature, f"Checkpoint #{checkpoint.number}")

    def note_doubtful(self, timeline_id: str, checkpoints: Iterable[Checkpoint]) -> None:
        """Those that somebody else wrote or altered must not be signed when they are saved."""
        seals = rows.read_seals(self._file.connection, timeline_id)
        for checkpoint in checkpoints:
            if checkpoint.has_durable_session:
                try:
                    seal = seals.get(checkpoint.id)
                    self._check(timeline_id, checkpoint, seal.signature if seal else None)
                except (NotAuthentic, KeyUnusable):
                    self._doubtful.add(checkpoint.id)

    def keys_for(self, checkpoint: Checkpoint) -> Keys | None:
        """With what a checkpoint is signed when it is saved; None: not at all."""
        return None if checkpoint.id in self._doubtful else self._keys

    def sign(self, timeline_id: str, checkpoints: Iterable[Checkpoint]) -> None:
        """Sign them as they are now, whoever wrote them. Raises StoreError, KeyUnusable, and then
        nothing was signed; within a transaction."""
        for checkpoint in checkpoints:
            rows.write_captures(self._file.connection, timeline_id, checkpoint, self._keys)
            self._doubtful.discard(checkpoint.id)
