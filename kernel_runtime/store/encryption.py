"""Whether a store is encrypted, and the way to its key.

``<store>/encryption.json`` (0600) holds the store's random data key, encrypted with a key that
comes from the user: from a key file by HKDF, from a passphrase by scrypt. Without that file
nothing that is sealed can be read again, nor without the user's secret:

    {"version": 1, "id": <32 hex digits>, "kdf": "hkdf-sha256" | "scrypt", "salt": <64 hex digits>,
     "n": 131072, "r": 8, "p": 1,          # of scrypt
     "key": <hex>}                         # sealed; its tag tells a wrong secret from a right one

The secret itself is never an argument of a program or a value of the environment: those name a
file. A process unlocks a store once and keeps its ``Cipher``.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import Any, Final, Literal

from kernel_runtime.later import dataclass
from kernel_runtime.store.cipher import KEY_LENGTH, Cipher, derived, stretched
from kernel_runtime.store.errors import EncryptionProblem
from kernel_runtime.store.paths import private_directory, sync

FILE_NAME: Final = "encryption.json"
VARIABLE: Final = "JUPYTER_TIMETRAVEL_ENCRYPTION"
SHORTEST: Final = 32
"""Bytes of a key file: as many as the key that they become."""

VERSION: Final = 1

_LONGEST: Final = 1 << 20
_SCRYPT: Final = {"n": 1 << 17, "r": 8, "p": 1}  # 128 MiB and some 0.4 s
_MOST: Final = {"n": 1 << 20, "r": 16, "p": 16}
_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)

Kdf = Literal["hkdf-sha256", "scrypt"]


class EncryptionLocked(EncryptionProblem):
    """The store is encrypted and cannot be opened: no key was given, or not the right one."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"The store is encrypted ({path}) and stays closed: {cause}. Nothing was read, written "
            f"or lost. Name the file that holds its key or passphrase in {VARIABLE} or "
            "Supervisor.encryption; without it what is stored cannot be read by anybody. Another "
            "directory for the store begins a new one."
        )


class EncryptionDamaged(EncryptionProblem):
    """The file that holds a store's encrypted key is not what was written."""

    def __init__(self, path: Path, cause: object) -> None:
        super().__init__(
            f"{path} is damaged: {cause}. Nothing was read, written or lost. Put a copy of that "
            "file in its place: it holds the key of the store, encrypted, and there is no other."
        )


class EncryptionRefused(EncryptionProblem):
    """Encryption was not turned on, or its key not changed: all is as it was."""


@dataclass(frozen=True)
class Secret:
    """What a key is made from. path: where it was read; None where a person typed it."""

    data: bytes
    path: Path | None = None


_lock: Final = threading.Lock()
_unlocked: Final[dict[str, tuple[str, Cipher]]] = {}
_named: Final[dict[str, str]] = {}


def is_encrypted(directory: Path) -> bool:
    """Whether what is written into this store is sealed."""
    return (directory / FILE_NAME).exists()


def kdf_of(directory: Path) -> Kdf:
    """How the key of an encrypted store is made. Raises EncryptionDamaged."""
    kdf: Kdf = _read(directory)["kdf"]
    return kdf


def cipher_of(directory: Path) -> Cipher | None:
    """The cipher of a store, None where it is not encrypted.

    Unlocks it, where this process has not, with the file that `at_start` or VARIABLE names.
    Raises EncryptionLocked, EncryptionDamaged, EncryptionUnavailable.
    """
    if not is_encrypted(directory):
        return None
    place, header = os.path.realpath(directory), _read(directory)
    with _lock:
        id, cipher = _unlocked.get(place, ("", None))
    if cipher is not None and id == header["id"]:
        return cipher
    named = _named.get(place) or os.environ.get(VARIABLE, "")
    if not named:
        raise EncryptionLocked(directory / FILE_NAME, "no key was given")
    return unlock(directory, secret_in(Path(named), directory, header["kdf"]))


def header_of(directory: Path) -> tuple[str, bytes]:
    """The id of an encrypted store's key, and the file that holds it, encrypted.

    Raises EncryptionLocked, EncryptionDamaged.
    """
    header = _read(directory)
    return header["id"], json.dumps(header, indent=1).encode("ascii")


def kdf_in(header: bytes, name: Path) -> Kdf:
    """How the key of a header from elsewhere is made. name: what it is called in an error.

    Raises EncryptionDamaged, EncryptionRefused.
    """
    kdf: Kdf = _parsed(name, header)["kdf"]
    return kdf


def open_header(header: bytes, name: Path, secret: Secret) -> Cipher:
    """The cipher of a header from elsewhere. Raises EncryptionLocked, EncryptionDamaged."""
    return Cipher(_data_key(name.parent, _parsed(name, header), secret))


def key_file(directory: Path) -> Path | None:
    """The file that holds the secret, as it is named to this process."""
    named = _named.get(os.path.realpath(directory)) or os.environ.get(VARIABLE, "")
    return Path(named).expanduser().absolute() if named else None


def unlock(directory: Path, secret: Secret) -> Cipher:
    """Open an encrypted store for this process. Raises as `cipher_of`."""
    header = _read(directory)
    cipher = Cipher(_data_key(directory, header, secret))
    with _lock:
        _unlocked[os.path.realpath(directory)] = header["id"], cipher
    return cipher


def at_start(directory: Path, named: str = "") -> None:
    """To be called before a session writes into a store. named: a file, over VARIABLE's.

    Where a key file is named, a store that does not exist yet becomes an encrypted one, and one
    that is not encrypted is refused: what was to be sealed is not written plain. Raises StoreError.
    """
    if named:
        _named[os.path.realpath(directory)] = named
    file = key_file(directory)
    if file is None or is_encrypted(directory):
        cipher_of(directory)
        return
    if (directory / "timelines.sqlite").exists() or (directory / "blobs").exists():
        raise EncryptionRefused(
            f"Encryption is asked for ({file}), but the store {directory} is not encrypted. "
            "Nothing was written or lost. `jupyter timetravel encrypt` turns it on; without "
            f"{VARIABLE} and Supervisor.encryption it is used as it is."
        )
    turn_on(directory, secret_in(file, directory, "hkdf-sha256"), "hkdf-sha256")


def turn_on(directory: Path, secret: Secret, kdf: Kdf) -> Cipher:
    """Make a store's data key; what is written from now on is sealed. Raises StoreError.

    No other process may be writing into the store. One that is encrypted already is refused.
    """
    if is_encrypted(directory):
        raise EncryptionRefused(f"The store {directory} is encrypted already. Nothing was changed.")
    private_directory(directory)
    _write(directory, _wrapped(directory, secrets.token_bytes(KEY_LENGTH), secret, kdf))
    return unlock(directory, secret)


def change(directory: Path, old: Secret, new: Secret, kdf: Kdf) -> None:
    """Encrypt the data key with another secret; what is stored stays as it is. Raises StoreError.

    Whoever has a copy of the file from before and the old secret can still open the store.
    """
    header = _read(directory)
    key = _data_key(directory, header, old)
    _write(directory, {**_wrapped(directory, key, new, kdf), "id": header["id"]})


def secret_in(path: Path, directory: Path, kdf: Kdf) -> Secret:
    """Read a key or passphrase from a file of the user's. Raises EncryptionLocked."""
    path = path.expanduser().absolute()
    where = directory / FILE_NAME
    try:
        fd = os.open(path, os.O_RDONLY | _O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise EncryptionLocked(where, f"{path} is no file")
            if hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0):
                raise EncryptionLocked(where, f"{path} belongs to another user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise EncryptionLocked(where, f"others could read {path} (chmod 600 closes it)")
            data = file.read(_LONGEST + 1)
    except OSError as cause:
        raise EncryptionLocked(where, f"{path} cannot be read: {cause.strerror}") from cause
    if kdf == "scrypt":
        data = data.removesuffix(b"\n").removesuffix(b"\r")
        if not data:
            raise EncryptionLocked(where, f"{path} holds no passphrase")
    elif not SHORTEST <= len(data) <= _LONGEST:
        raise EncryptionLocked(
            where, f"{path} holds {len(data)} bytes; a key has {SHORTEST} to {_LONGEST}"
        )
    return Secret(data, path)


def _wrapped(directory: Path, key: bytes, secret: Secret, kdf: Kdf) -> dict[str, Any]:
    header: dict[str, Any] = {
        "version": VERSION,
        "id": secrets.token_hex(16),
        "kdf": kdf,
        "salt": secrets.token_hex(32),
        **(_SCRYPT if kdf == "scrypt" else {}),
    }
    wrapping = Cipher(_wrapping_key(directory, header, secret))
    return {**header, "key": wrapping.seal(key, _purpose(header)).hex()}


def _data_key(directory: Path, header: dict[str, Any], secret: Secret) -> bytes:
    wrapping = Cipher(_wrapping_key(directory, header, secret))
    try:
        return wrapping.open(bytes.fromhex(header["key"]), _purpose(header))
    except ValueError as cause:
        what = f"what {secret.path} holds" if secret.path is not None else "the passphrase given"
        raise EncryptionLocked(directory / FILE_NAME, f"{what} does not open it") from cause


def _wrapping_key(directory: Path, header: dict[str, Any], secret: Secret) -> bytes:
    salt = bytes.fromhex(header["salt"])
    if header["kdf"] == "scrypt":
        try:
            return stretched(secret.data, salt, header["n"], header["r"], header["p"])
        except (ValueError, MemoryError) as cause:
            raise EncryptionDamaged(directory / FILE_NAME, cause) from cause
    return derived(secret.data, salt, b"timetravel store 1", KEY_LENGTH)


def _purpose(header: dict[str, Any]) -> str:
    """Of the sealed data key: that it belongs to these parameters."""
    told = {name: header.get(name) for name in ("version", "kdf", "salt", "n", "r", "p")}
    return f"store key {json.dumps(told, sort_keys=True)}"


def _read(directory: Path) -> dict[str, Any]:
    path = directory / FILE_NAME
    try:
        data = path.read_bytes()
    except OSError as cause:
        raise EncryptionLocked(path, f"it cannot be read: {cause.strerror}") from cause
    return _parsed(path, data)


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(data)
        if header["version"] != VERSION:
            raise EncryptionRefused(
                f"{path} is of version {header['version']!r}, and this jupyter_timetravel knows "
                f"{VERSION}. Nothing was read, written or lost. Upgrade jupyter_timetravel."
            )
        for name in ("id", "salt", "key"):
            bytes.fromhex(header[name])
        if header["kdf"] not in ("hkdf-sha256", "scrypt"):
            raise ValueError(f"{header['kdf']!r} is not known")
        if header["kdf"] == "scrypt" and not all(1 <= header[x] <= _MOST[x] for x in _MOST):
            raise ValueError("its numbers are absurd")
    except (ValueError, KeyError, TypeError) as cause:
        raise EncryptionDamaged(path, cause) from cause
    return header


def _write(directory: Path, header: dict[str, Any]) -> None:
    """Replace the file as a whole, durably. Raises EncryptionRefused."""
    path = directory / FILE_NAME
    temporary = path.with_suffix(f".{secrets.token_hex(6)}")
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="ascii") as file:
                json.dump(header, file, indent=1)
                file.flush()
                os.fsync(fd)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(directory)
    except OSError as cause:
        raise EncryptionRefused(
            f"{path} could not be written: {cause.strerror}. Nothing was changed."
        ) from cause
