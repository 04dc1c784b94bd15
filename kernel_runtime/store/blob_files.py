"""Blobs as they lie in their files: found, read, verified.

A blob's file holds what the codec made of it (coding.py): its own bytes, compressed ones, or a
delta to another blob; in an encrypted store that is sealed. blobs.py adds blobs and deletes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel_runtime import hashing
from kernel_runtime.store import encryption
from kernel_runtime.store.cipher import OVERHEAD
from kernel_runtime.store.coding import HEAD, Codec, Plain
from kernel_runtime.store.digests import BlobDamaged, BlobError, BlobMissing, Digest, digest_of
from kernel_runtime.store.reflinks import clone_range
from kernel_runtime.store.shelf import Shelf

DEEPEST: Final = 4
"""Deltas that are gone through to read one, as they are written."""

_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)


class BlobFiles(Shelf):
    """The blobs of one directory, for reading. Thread safe."""

    def __init__(self, path: Path, codec: Codec | None, home: Path | None) -> None:
        """As ``BlobStore``. Raises EncryptionLocked, EncryptionDamaged, EncryptionUnavailable."""
        self.path = path
        self._codec = codec or Plain()
        self._home = home or path
        self._cipher = encryption.cipher_of(self._home)

    def get(self, digest: Digest) -> bytes:
        """The bytes of a blob, verified. Raises BlobMissing or BlobDamaged."""
        data = self._read(digest)
        if digest_of(data) != digest:
            raise BlobDamaged(digest)
        return data

    def get_some(self, digests: Sequence[Digest]) -> dict[Digest, bytes]:
        """Those of a few blobs that are there and good, verified together: that is faster."""
        found = {}
        for digest in digests:
            with contextlib.suppress(BlobError):
                found[digest] = self._read(digest)
        names = hashing.digests([memoryview(data) for data in found.values()])
        return {
            digest: data
            for (digest, data), name in zip(found.items(), names, strict=True)
            if name == digest
        }

    def write_into(self, digest: Digest, fd: int, offset: int) -> int:
        """Write a blob, verified, into an open file. Returns its length in bytes.

        Shares blocks where the filesystem can. Raises BlobMissing, BlobDamaged, OSError.
        """
        data = self.get(digest)
        if (
            len(data) >= 65_536
            and self._cipher is None
            and self._clone_into(digest, fd, offset, len(data))
        ):
            return len(data)
        view = memoryview(data)
        done = 0
        while done < len(data):
            done += os.pwrite(fd, view[done:], offset + done)
        return len(data)

    def bases(self, digests: Iterable[str]) -> set[Digest]:
        """The blobs that these are deltas to, as deep as it goes, whether or not they are there."""
        found: set[Digest] = set()
        for digest in digests:
            found.update(self._chain(str(self.plain_file(Digest(digest)))))
        return found

    def has(self, digest: Digest, size: int | None = None) -> bool:
        """Whether a blob is there and, if size is given, as long as it should be (plain ones)."""
        found = self.size(digest)
        return found is not None and (size is None or not self._codec.is_plain or found == size)

    def size(self, digest: Digest) -> int | None:
        """Bytes of a blob, from its file, not read; None if it is not there (plain codec)."""
        target = self._found(digest)
        with contextlib.suppress(OSError):
            return os.stat(target).st_size - (OVERHEAD if self._is_sealed(target) else 0)
        return None

    def room(self, digests: Iterable[Digest]) -> int:
        """Bytes on the disk of these blobs; what is not there takes none."""
        total = 0
        for digest in digests:
            for name in self._files(digest):
                with contextlib.suppress(OSError):
                    total += os.stat(name).st_blocks * 512
        return total

    def check(self) -> Iterator[tuple[Digest, str]]:
        """Read every blob; yield those that cannot be used, each with the reason."""
        for digest in list(self.blobs()):
            try:
                self.get(digest)
            except BlobError as problem:
                yield digest, str(problem)

    @property
    def is_encrypted(self) -> bool:
        """Whether what is put is sealed."""
        return self._cipher is not None

    def seal(self, data: bytes, purpose: str) -> bytes:
        """Bytes that are to lie in a file of the store: sealed, if it is encrypted."""
        return data if self._cipher is None else self._cipher.seal(data, purpose)

    def unseal(self, data: bytes, purpose: str) -> bytes:
        """The reverse. Raises ValueError."""
        return data if self._cipher is None else self._cipher.open(data, purpose)

    # -- inside -------------------------------------------------------------------------------

    def _found(self, digest: Digest) -> str:
        """Where a blob lies, or is to lie if it is not there."""
        files = self._files(digest)
        if len(files) == 1:
            return files[0]
        return next((name for name in files if os.path.exists(name)), files[0])

    def _is_sealed(self, target: str) -> bool:
        return self._cipher is not None and target.startswith(f"{self.path}/sealed/")

    def _decode(self, digest: Digest, target: str, stored: bytes) -> bytes:
        """The reverse. Raises ValueError."""
        return self._decode_at(digest, target, stored, 0)

    def _decode_at(self, digest: Digest, target: str, stored: bytes, depth: int) -> bytes:
        if self._cipher is not None and self._is_sealed(target):
            stored = self._cipher.open(stored, f"blob {digest}")

        def read(base: Digest) -> bytes:
            if depth == 4 * DEEPEST:  # a base that was lost was stored again as a delta
                raise ValueError("deltas to deltas without an end")
            try:
                file = self._found(base)
                with open(file, "rb") as opened:
                    found = opened.read()
            except OSError as cause:
                raise ValueError(f"it is a delta to {base[:12]}, which cannot be read") from cause
            return self._decode_at(base, file, found, depth + 1)

        return self._codec.decode(stored, read)

    def _chain(self, target: str) -> list[Digest]:
        """What a file is a delta to, and what that is one to, up to what is whole."""
        found: list[Digest] = []
        base = self._base_of(target)
        while base is not None and base not in found:
            found.append(base)
            base = self._base_of(str(self.plain_file(base)))
        return found

    def _base_of(self, target: str) -> Digest | None:
        """What a file that is not sealed is a delta to; None also where it cannot be read."""
        if self._codec.is_plain or self._is_sealed(target):
            return None
        try:
            with open(target, "rb") as file:
                return self._codec.base_of(file.read(HEAD))
        except OSError:
            return None

    def _read(self, digest: Digest) -> bytes:
        """The bytes under this name, **not verified**. Raises BlobMissing or BlobDamaged."""
        try:
            target = self._found(digest)
            with open(target, "rb") as file:
                stored = file.read()
        except OSError as cause:
            raise BlobMissing(digest, cause.strerror or "read error") from cause
        try:
            return self._decode(digest, target, stored)
        except ValueError as cause:
            raise BlobDamaged(digest) from cause

    def _clone_into(self, digest: Digest, fd: int, offset: int, length: int) -> bool:
        try:
            source = os.open(self._file(digest), os.O_RDONLY | _O_CLOEXEC)
        except OSError:
            return False
        try:
            clone_range(fd, offset, source, 0, length)
            return True
        except OSError:
            return False
        finally:
            os.close(source)
