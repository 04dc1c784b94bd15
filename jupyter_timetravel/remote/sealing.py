"""With which key a remote's content is sealed, and how one gets at it.

What comes out of an encrypted store travels sealed with that store's data key. The key itself
travels as it lies in ``encryption.json``: encrypted with what the user makes of a key file or a
passphrase. So whoever has only the remote can read nothing, and who has the file or passphrase too
needs nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jupyter_timetravel.offline import stored
from jupyter_timetravel.remote.bucket import Bucket, Gone
from kernel_runtime.store import encryption
from kernel_runtime.store.cipher import Cipher
from kernel_runtime.store.encryption import EncryptionLocked, EncryptionRefused, Secret

KEYS = "keys"


@dataclass(frozen=True)
class Seal:
    """A data key with its id and, as the remote has it, its header."""

    id: str
    cipher: Cipher
    header: bytes

    @property
    def name(self) -> str:
        """Where the header lies."""
        return f"{KEYS}/{self.id}.json"


def of_store(directory: Path) -> Seal | None:
    """That of a store; None where it is not encrypted. Raises StoreError."""
    cipher = encryption.cipher_of(directory)
    if cipher is None:
        return None
    id, header = encryption.header_of(directory)
    return Seal(id, cipher, header)


def of_remote(bucket: Bucket, id: str, directory: Path) -> tuple[Seal, Secret | None]:
    """That of a remote, and what opened it where that is not the store's own.

    Asks for a passphrase where one is needed. Raises StoreError, RemoteUnreachable.
    """
    if encryption.is_encrypted(directory) and encryption.header_of(directory)[0] == id:
        stored.unlock(directory)
        own = of_store(directory)
        assert own is not None
        return own, None
    name = Path(f"{bucket.shown.rstrip('/')}/{KEYS}/{id}.json")
    try:
        header = bucket.get(f"{KEYS}/{id}.json")
    except Gone:
        raise EncryptionLocked(name, "it is not there, so nobody can read what it seals") from None
    kdf = encryption.kdf_in(header, name)
    file = encryption.key_file(directory)
    if file is not None:
        secret = encryption.secret_in(file, name.parent, kdf)
    elif kdf == "scrypt":
        secret = Secret(stored.ask(f"Passphrase of {name.parent}: ", name.parent))
    else:
        raise EncryptionLocked(name, "no key was given")
    return Seal(id, encryption.open_header(header, name, secret), header), secret


def prepare(directory: Path, bucket: Bucket, seal: Seal, secret: Secret | None) -> None:
    """See that what was sealed is not written plain: a store that is new is made an encrypted one.

    Raises EncryptionRefused.
    """
    if encryption.is_encrypted(directory):
        stored.unlock(directory)
        return
    if (directory / "timelines.sqlite").exists() or (directory / "blobs").exists():
        raise EncryptionRefused(
            f"What is in {bucket.shown} is sealed, and the store {directory} is not encrypted. "
            "Nothing was fetched or written; `jupyter timetravel encrypt` encrypts the store, or "
            "give another one with --store DIR: it is made an encrypted one."
        )
    assert secret is not None
    kdf = encryption.kdf_in(seal.header, Path(seal.name))
    encryption.turn_on(directory, secret, kdf)
