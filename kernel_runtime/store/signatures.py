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

        Must be called before a session is loaded from one of its captures. It may have more of
        them by now, or other ones: a kernel writes them while it goes on. What is signed is
        what is stored, and what the caller knows must be among that. Raises NotAuthentic,
        NotTrusted, KeyUnusable, StoreError.
        """
        with self._file.reading_and_decoding():
            signature, stored = rows.read_signed(self._file.connection, checkpoint.id)
        self._check(timeline_id, checkpoint, signature, stored)
        if not set(rows.durable_refs(checkpoint.captures)) <= set(stored):
            raise NotAuthentic(f"Checkpoint #{checkpoint.number}")

    def _check(
        self, timeline_id: str, checkpoint: Checkpoint, signature: str | None, refs: rows.Refs
    ) -> None:
        text = rows.signed_text(timeline_id, checkpoint, refs)
        self._keys.check(rows.PURPOSE, text, signature, f"Checkpoint #{checkpoint.number}")

    def note_doubtful(self, timeline_id: str, checkpoints: Iterable[Checkpoint]) -> None:
        """Those that somebody else wrote or altered must not be signed when they are saved."""
        seals = rows.read_seals(self._file.connection, timeline_id)
        for checkpoint in checkpoints:
            if checkpoint.has_durable_session:
                try:
                    seal = seals.get(checkpoint.id)
                    signature = seal.signature if seal else None
                    refs = rows.durable_refs(checkpoint.captures)
                    self._check(timeline_id, checkpoint, signature, refs)
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
