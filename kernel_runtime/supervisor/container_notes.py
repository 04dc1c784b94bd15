"""What a restore notes in the store for the supervisor in the next container (`NextContainer`).

One file for each timeline, ``<store>/containers/<timeline id>``: a JSON object, sealed where the
store is encrypted, as requests hold code. It is there as long as the restore is not finished.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernel_runtime.store import encryption
from kernel_runtime.store.paths import private_directory, sync

FOLDER: Final = "containers"
_PURPOSE: Final = "container"


class Notes:
    """Of one timeline."""

    def __init__(self, store: Path, timeline: str) -> None:
        self._store = store
        self._file = store / FOLDER / timeline

    @property
    def is_there(self) -> bool:
        return self._file.exists()

    def write(self, note: Mapping[str, Any]) -> None:
        """Have it on the disk, in place of another one. Raises StoreError, OSError."""
        data = json.dumps(note).encode()
        cipher = encryption.cipher_of(self._store)
        private_directory(self._file.parent)
        temporary = self._file.with_suffix(".new")
        temporary.write_bytes(cipher.seal(data, _PURPOSE) if cipher is not None else data)
        sync(temporary)
        os.replace(temporary, self._file)
        sync(self._file.parent)

    def read(self) -> dict[str, Any] | None:
        """None if there is none. Raises StoreError, ValueError."""
        try:
            data = self._file.read_bytes()
        except OSError:
            return None
        cipher = encryption.cipher_of(self._store)
        note: dict[str, Any] = json.loads(
            cipher.open(data, _PURPOSE) if cipher is not None else data
        )
        return note

    def remove(self) -> None:
        """Nothing is to be finished."""
        self._file.unlink(missing_ok=True)


def packed(identities: Sequence[bytes], frames: Sequence[bytes]) -> list[list[str]]:
    """A message, for a note."""
    return [[base64.b64encode(one).decode() for one in part] for part in (identities, frames)]


def unpacked(noted: Sequence[Sequence[str]]) -> list[list[bytes]]:
    """Its identities and frames."""
    return [[base64.b64decode(one) for one in part] for part in noted]
