"""Where time travel keeps its files, and how it makes those that are its owner's only."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jupyter_core.paths import jupyter_data_dir

from kernel_runtime.store.errors import StoreError, refused

STORE_VARIABLE: Final = "JUPYTER_TIMETRAVEL_STORE"
KEYS_VARIABLE: Final = "JUPYTER_TIMETRAVEL_KEYS"


def store_directory() -> Path:
    """``$JUPYTER_TIMETRAVEL_STORE``, else ``timetravel`` in Jupyter's data directory."""
    given = os.environ.get(STORE_VARIABLE)
    return Path(given).absolute() if given else Path(jupyter_data_dir(), "timetravel").absolute()


def key_directory() -> Path:
    """``$JUPYTER_TIMETRAVEL_KEYS``, else ``timetravel/keys`` in Jupyter's data directory.

    It does not follow the store: a store from elsewhere must not bring its own key along.
    """
    given = os.environ.get(KEYS_VARIABLE)
    if given:
        return Path(given).absolute()
    return Path(jupyter_data_dir(), "timetravel", "keys").absolute()


def private_directory(path: Path) -> None:
    """Make a directory that only its owner can use, whatever the umask; parents as needed.

    An existing one is taken over if it is ours, and closed to others. Raises StoreError.
    """
    try:
        missing = [at for at in (path, *path.parents) if not at.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        for made in missing:
            sync(made.parent)  # or a power cut takes the whole of it
        found = path.stat()
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise StoreError(
                f"{path} belongs to another user (id {found.st_uid}), who could read and change "
                f"your checkpoints. Nothing was written there; set {STORE_VARIABLE} to a directory "
                "of yours."
            )
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise refused(path, error, f"{STORE_VARIABLE} names another place for it.") from error


def sync(path: str | Path) -> None:
    """fsync(2) a file or, for the names in it, a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_file(path: Path) -> None:
    """Make an empty file that only its owner can use, unless it is there already."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refused(path, error) from error


@contextlib.contextmanager
def private_umask() -> Iterator[None]:
    """What is made meanwhile, by libraries too, is its owner's only. For one-threaded programs."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def private_opener(path: str, flags: int) -> int:
    """For open(): a file that it makes is its owner's only."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)


def save(path: Path, data: bytes, *, again: bool = False) -> None:
    """Write a file of the owner's only, which is on the disk when this returns; not its name.

    again: it may be there already. Raises OSError.
    """
    with open(path, "wb" if again else "xb", opener=private_opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
