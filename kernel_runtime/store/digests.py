"""Names of blobs, and what can be wrong with one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NewType

from kernel_runtime.store.errors import StoreError

Digest = NewType("Digest", str)
"""BLAKE2b-256 of a blob's bytes, or the name of a held file: 64 lower-case hex digits."""


def digest_of(data: bytes | memoryview) -> Digest:
    """The name that the store gives to these bytes."""
    return Digest(hashlib.blake2b(data, digest_size=32).hexdigest())


class BlobError(StoreError):
    """Content in the store cannot be read or written."""


class BlobMissing(BlobError):
    """A blob that a checkpoint needs is not in the store."""

    def __init__(self, digest: str, cause: str = "it is not there") -> None:
        super().__init__(
            f"Blob {digest[:12]} cannot be read from the store: {cause}. Other blobs are not "
            "affected. Capture the same content again to bring it back."
        )
        self.digest = digest


class BlobDamaged(BlobError):
    """A blob's bytes do not have the hash that is its name."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"Blob {digest[:12]} is damaged: its content does not match its name. Other blobs "
            "are not affected. Capture the same content again to heal it."
        )
        self.digest = digest


class BlobNotStored(BlobError):
    """A blob could not be written into the store."""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(
            f"The store at {path} cannot be written: {cause.strerror}. What was stored before is "
            "intact. See that it is yours and that its disk works, then try again."
        )


class BlobStoreFull(BlobNotStored):
    """The store's disk (or quota) has no room for another blob."""

    def __init__(self, path: Path, needed: int, free: int | None) -> None:
        room = "" if free is None else f", {free} bytes are free"
        BlobError.__init__(
            self,
            f"No room in the store at {path}: {needed} bytes are needed{room}. What was stored "
            "before is intact. Delete checkpoints or free disk space, then try again.",
        )
        self.path, self.needed, self.free = path, needed, free
