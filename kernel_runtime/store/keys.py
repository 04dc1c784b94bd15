"""The user's key: what of a store was written by this user's own sessions.

A namespace is restored by unpickling, and a pickle is code. So a manifest, and the row of the
checkpoint that names it, carry an HMAC-SHA256 with a key that only the user has; what does not is
not loaded. The key lies outside of the store: a store that somebody else made, or a copy of one
from another machine, does not bring its own permission along.

HMAC is symmetric: whoever can check a signature could have made it, so the signature of somebody
else says nothing here but which key it claims to be of. What comes from elsewhere is trusted by
a person, as a whole, and then signed anew (``NamespaceStore.adopt``).

The signature is text: ``<key id>:<64 hex digits>``. The key id is a hash of the key and no secret.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import Final

from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.paths import KEYS_VARIABLE, key_directory, private_directory, sync

FILE_NAME: Final = "key"
LENGTH: Final = 32
"""Bytes of a key: as long as the hash, RFC 2104 section 3."""

_O_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)


class KeyUnusable(StoreError):
    """The user's key cannot be read or made: nothing that needs one is signed or loaded."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"The key {path} cannot be used: {cause}. Nothing was signed and nothing was loaded. "
            f"See that it is a file of yours that nobody else can read; {KEYS_VARIABLE} names "
            "another directory for it. If the key is lost, move what is left of it away: a new "
            "one is made, and `jupyter timetravel trust` takes up what the old one had signed."
        )


class NotAuthentic(StoreError):
    """What is stored is not what this user's sessions have written: it was not loaded."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was altered after it was written: its signature does not match. Nothing of "
            "it was loaded. Other checkpoints are not affected; restore another one, and see who "
            "can write to the store."
        )


class NotTrusted(NotAuthentic):
    """It is signed with another key than this user's, or not at all: it was not loaded."""

    def __init__(self, what: str, key_id: str | None) -> None:
        by = f"signed with the key {key_id}, which is not yours" if key_id else "not signed"
        StoreError.__init__(
            self,
            f"{what} is {by}. Nothing of it was loaded: restoring it runs code that whoever made "
            "it chose. If you know where it comes from, `jupyter timetravel trust` accepts it.",
        )
        self.key_id = key_id


class Keys:
    """The key of this user. Thread safe; makes nothing before it is first used."""

    def __init__(self, directory: Path | None = None) -> None:
        """directory: where the key is or is to be made (default: ``paths.key_directory()``)."""
        self.path = (directory or key_directory()) / FILE_NAME
        self._lock = threading.Lock()
        self._key: bytes | None = None

    @property
    def id(self) -> str:
        """16 hex digits that name this user's key. Raises KeyUnusable."""
        return _id_of(self._secret())

    def sign(self, purpose: str, data: bytes) -> str:
        """The signature of data, good for this purpose only. Raises KeyUnusable."""
        key = self._secret()
        return f"{_id_of(key)}:{_mac(key, purpose, data)}"

    def check(self, purpose: str, data: bytes, signature: str | None, what: str) -> None:
        """Return if this user's key signed data for this purpose.

        what: how it is called in a sentence. Raises NotAuthentic where data or the signature
        were altered, NotTrusted where another key signed or none did, KeyUnusable.
        """
        key = self._secret()
        claimed = signer(signature)
        if signature is None or claimed != _id_of(key):
            raise NotTrusted(what, claimed)
        if not hmac.compare_digest(signature, f"{claimed}:{_mac(key, purpose, data)}"):
            raise NotAuthentic(what)

    def _secret(self) -> bytes:
        with self._lock:
            if self._key is None:
                try:
                    self._key = _read(self.path) or _make(self.path)
                except OSError as cause:
                    raise KeyUnusable(self.path, cause.strerror or str(cause)) from cause
            return self._key


def signer(signature: str | None) -> str | None:
    """The id of the key that a signature claims to be of; None if it is no signature."""
    left, _, right = (signature or "").partition(":")
    return left if _is_hex(left, 16) and _is_hex(right, 64) else None


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and not text.strip("0123456789abcdef")


def _id_of(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=8, person=b"timetravel key").hexdigest()


def _mac(key: bytes, purpose: str, data: bytes) -> str:
    # The purpose holds no NUL, so no two pairs give the same text.
    return hmac.new(key, purpose.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def _read(path: Path) -> bytes | None:
    """The key, or None if there is none. Raises OSError, KeyUnusable."""
    try:
        fd = os.open(path, os.O_RDONLY | _O_NOFOLLOW | _O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise KeyUnusable(path, f"it belongs to another user (id {found.st_uid})")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise KeyUnusable(path, "others could read or change it, so it may be known to them")
        key = os.read(fd, LENGTH + 1)
    finally:
        os.close(fd)
    if len(key) != LENGTH:
        raise KeyUnusable(path, f"it holds {len(key)} bytes instead of {LENGTH}")
    return key


def _make(path: Path) -> bytes:
    """Make the key; of several that do so at once, one wins. Raises OSError, StoreError."""
    private_directory(path.parent)
    temporary = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _O_NOFOLLOW | _O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        try:
            os.write(fd, secrets.token_bytes(LENGTH))
            os.fsync(fd)
        finally:
            os.close(fd)
        # A link appears with its whole content, and only if there is none of that name.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink()
    key = _read(path)
    if key is None:
        raise OSError(errno.ENOENT, "it was deleted while it was made")
    return key
