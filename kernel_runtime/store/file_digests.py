"""Digests of files that images refer to, kept for all kernels of a store: libraries are read once.

One file, ``<store>/images/files``: a signature and JSON, written whole and renamed into its place;
sealed in an encrypted store, as a digest tells who can guess a file that it is that one.
What cannot be read or is not ours is done without; it costs time alone.

A digest is kept for a file's device, inode, size, mtime and ctime. Nobody but root can set a ctime
back, so a file that is still known by these has the bytes that were read, if a write after the
reading must have given it another ctime. engines/mapped_files.py decides that.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Final

from kernel_runtime.hashing import AT_ONCE, digests
from kernel_runtime.store import encryption
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.paths import save

NAME: Final = "files"
SETTLED_NS: Final = 10 * 60 * 10**9
"""A file that was written to later than that before it is read is read by each kernel.

Far more than what a clock's tick takes: a page that is mapped to be written changes the ctime when
it is written to first, and again only after it was written back, which Linux does within a minute.
"""

_KINDS: Final = {"": 0, "pieces-4M-": 4 << 20, "pieces-512K-": 512 << 10}
"""How a digest begins: of a file as a whole, or of the digests of its pieces of that size."""
_OF_PIECES: Final = "pieces-512K-"
_LARGE: Final = AT_ONCE * _KINDS[_OF_PIECES]
"""Bytes of a file from which on it is hashed in pieces, four at once: several times as fast."""
_CHUNK: Final = 1 << 20

_PURPOSE: Final = "digests of mapped files 1"
_MOST: Final = 10_000

Key = tuple[int, int, int, int, int]
"""st_dev, st_ino, st_size, st_mtime_ns, st_ctime_ns."""


def key_of(found: os.stat_result) -> Key:
    """What a file's digest is kept for."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class KeptDigests:
    """The digests of one store. Thread safe; several processes may use it at once."""

    def __init__(self, directory: Path, keys: Keys) -> None:
        """directory: below the store's. Nothing is read or made before it is needed."""
        self._path = directory / NAME
        self._keys = keys
        self._lock = threading.Lock()
        self._known: dict[Key, str] | None = None
        self._new: dict[Key, str] = {}

    def get(self, key: Key) -> str | None:
        """The digest of a file, if it is known."""
        with self._lock:
            if self._known is None:
                self._known = self._read()
            return self._new.get(key) or self._known.get(key)

    def add(self, key: Key, digest: str) -> None:
        """Know one from now on; `save` keeps it."""
        with self._lock:
            self._new[key] = digest

    def save(self) -> None:
        """Keep what was added, beside what other kernels have. Never raises."""
        with self._lock:
            if not self._new:
                return
            # the newest last: the oldest go where there are too many
            known = {**self._read(), **self._new}
            self._new = {}
            self._known = dict(list(known.items())[-_MOST:])
            body = json.dumps([[*key, digest] for key, digest in self._known.items()]).encode()
            scratch = self._path.with_name(f"{NAME}-{secrets.token_hex(8)}")
            with contextlib.suppress(OSError, StoreError):
                try:
                    signed = self._keys.sign(_PURPOSE, body).encode() + b"\n" + body
                    cipher = encryption.cipher_of(self._path.parents[1])
                    save(scratch, cipher.seal(signed, _PURPOSE) if cipher else signed)
                    os.replace(scratch, self._path)
                finally:
                    scratch.unlink(missing_ok=True)

    def _read(self) -> dict[Key, str]:
        try:
            signed = self._path.read_bytes()
            cipher = encryption.cipher_of(self._path.parents[1])
            if cipher:
                signed = cipher.open(signed, _PURPOSE)
            signature, _, body = signed.partition(b"\n")
            self._keys.check(_PURPOSE, body, signature.decode("ascii", "replace"), str(self._path))
            return {
                (dev, ino, size, mtime, ctime): digest
                for dev, ino, size, mtime, ctime, digest in json.loads(body)
            }
        except (OSError, StoreError, ValueError, TypeError):
            return {}


def digest_like(fd: int, digest: str) -> str:
    """The digest of a file, of the same kind as one that it had. Raises OSError."""
    return _digest(fd, max((kind for kind in _KINDS if digest.startswith(kind)), key=len))


def digest_of_file(fd: int) -> str:
    """BLAKE2b of a file, of a large one that of the digests of its pieces. Raises OSError."""
    return _digest(fd, _OF_PIECES if os.fstat(fd).st_size >= _LARGE else "")


def _fill(fd: int, room: memoryview, at: int) -> memoryview:
    """So many bytes of a file, fewer at its end only."""
    got = 0
    while got < len(room) and (more := os.preadv(fd, [room[got:]], at + got)):
        got += more
    return room[:got]


def _digest(fd: int, kind: str) -> str:
    """Read, not mapped: a file that is cut off meanwhile must not end this process."""
    found = blake2b(digest_size=32)
    size = _KINDS[kind]
    at, room = 0, memoryview(bytearray(AT_ONCE * size or _CHUNK))
    while data := _fill(fd, room, at):
        if size:
            pieces = [data[n : n + size] for n in range(0, len(data), size)]
            found.update("".join(digests(pieces)).encode())
        else:
            found.update(data)
        at += len(data)
    return kind + found.hexdigest()
