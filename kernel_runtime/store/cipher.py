"""How a store is sealed: AES-256-GCM for content, AES-SIV for names, by one random key.

Sealed bytes are ``\\1``, a random nonce of 96 bits, the ciphertext and its tag of 128 bits; what
they are and where they belong is the associated data, so nothing sealed can take the place of
something else. With random nonces one key is good for 2^32 seals (NIST SP 800-38D, 8.3).

A blob's file is named by its digest, encrypted with AES-SIV (RFC 5297): the name says nothing
about the content to who has not the key, equal content has one name, and who has the key learns
the digest from the name, as sweeping and checking need it.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

from kernel_runtime.store.errors import EncryptionProblem

KEY_LENGTH: Final = 32
OVERHEAD: Final = 1 + 12 + 16
"""Bytes that sealing adds: version, nonce, tag."""

LARGEST: Final = (1 << 31) - 1
"""Bytes that are sealed at once."""

_VERSION: Final = b"\1"
_NONCE: Final = 12
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class EncryptionUnavailable(EncryptionProblem):
    """The library that encrypts is not installed: the store was not touched."""

    def __init__(self, cause: ImportError) -> None:
        super().__init__(
            f"An encrypted store needs the package cryptography ({cause}). Nothing was read, "
            "written or lost. Install it beside jupyter_timetravel: "
            "pip install 'jupyter_timetravel[encryption]'."
        )


class Altered(ValueError):
    """What is sealed does not open: it was altered, moved, or is another key's."""


class Cipher:
    """Seals and opens with one data key. Thread safe; never shows the key."""

    def __init__(self, key: bytes) -> None:
        """key: KEY_LENGTH random bytes. Raises EncryptionUnavailable."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
        except ImportError as cause:
            raise EncryptionUnavailable(cause) from cause
        self._content = AESGCM(derived(key, b"", b"timetravel content 1", 32))
        self._names = AESSIV(derived(key, b"", b"timetravel names 1", 64))
        self._marks = derived(key, b"", b"timetravel marks 1", 32)
        self._invalid = InvalidTag

    def seal(self, data: bytes | memoryview, purpose: str) -> bytes:
        """The sealed bytes, which only open for the same purpose. Raises ValueError: too large."""
        if len(data) > LARGEST:
            raise ValueError(f"{len(data)} bytes are too many to be sealed at once")
        nonce = os.urandom(_NONCE)
        return b"".join((_VERSION, nonce, self._content.encrypt(nonce, data, purpose.encode())))

    def open(self, sealed: bytes | memoryview, purpose: str) -> bytes:
        """The plain bytes. Raises Altered where these are not what was sealed for this purpose."""
        view = memoryview(sealed)
        if len(view) < OVERHEAD or bytes(view[:1]) != _VERSION:
            raise Altered("not sealed by this version")
        try:
            return self._content.decrypt(view[1 : 1 + _NONCE], view[1 + _NONCE :], purpose.encode())
        except self._invalid as cause:
            raise Altered("altered, or sealed with another key or as something else") from cause

    def hide(self, digest: str) -> str:
        """The name that stands for a digest: 96 hex digits, always the same ones."""
        return self._names.encrypt(bytes.fromhex(digest), None).hex()

    def reveal(self, name: str) -> str:
        """The digest that a name stands for. Raises Altered if it is none of this key's."""
        try:
            digest = self._names.decrypt(bytes.fromhex(name), None).hex()
        except (self._invalid, ValueError) as cause:
            raise Altered("not a name of this store") from cause
        if not _DIGEST.fullmatch(digest):
            raise Altered("not a name of this store")
        return digest

    def mark(self, digest: str) -> str:
        """A digest that nobody can compare with guesses; one way, 64 hex digits."""
        return hashlib.blake2b(digest.encode(), digest_size=32, key=self._marks).hexdigest()


def derived(secret: bytes, salt: bytes, purpose: bytes, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869) of a secret of enough entropy. Raises EncryptionUnavailable."""
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as cause:
        raise EncryptionUnavailable(cause) from cause
    return HKDF(SHA256(), length, salt, purpose).derive(secret)


def stretched(passphrase: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    """scrypt (RFC 7914) of a passphrase: 128 * n * r bytes of memory. A key of KEY_LENGTH."""
    return hashlib.scrypt(
        passphrase, salt=salt, n=n, r=r, p=p, dklen=KEY_LENGTH, maxmem=128 * n * r + (32 << 20)
    )
