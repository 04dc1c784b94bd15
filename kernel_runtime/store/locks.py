"""Which process has a timeline: a POSIX record lock on a file of its own.

The system gives the lock up when its holder ends, however it ends, so a dead holder is never
mistaken for a live one and age plays no part. A child made by fork does not have the lock.

POSIX drops a process' lock on a file when it closes *any* descriptor of it (fcntl(2)), so each
lock file is opened here only, and never for one that this process has. A program with several
threads (a Jupyter server) takes turns here: else one thread would look at a file, another lock it,
and the first, closing what it looked at, drop that lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from kernel_runtime.linux import boot_id
from kernel_runtime.store import filesystem_type
from kernel_runtime.store.errors import LocksSilent, StoreError, refused

if sys.platform != "win32":
    import fcntl

_FLOCK: Final = "hhqqi4x"
_BOOT: Final = ", boot "
"""Before the boot id, which tells machines of one name apart, and one from before it restarted. For
who looks into the file; a message has the rest."""
_held: Final[dict[Path, int]] = {}
"""Lock files of this process and their descriptors."""
_turn: Final = threading.RLock()


_silent: Final[set[Path]] = set()
"""Directories whose locks have not answered."""

PATIENCE_S: Final = 20.0
"""Seconds that a network filesystem's locks get to answer at all."""


def ask(directory: Path) -> None:
    """See that a store's network filesystem answers about locks, before anything waits for that.

    Raises LocksSilent, StoreError. What a lock server that is down is asked cannot be called off:
    the thread that has asked stays behind and ends with the process, which does not ask again.
    """
    if sys.platform == "win32" or not filesystem_type.is_network(directory):
        return
    found: list[OSError | None] = []
    if directory in _silent:
        raise LocksSilent(directory, filesystem_type.name(directory), PATIENCE_S)
    asking = threading.Thread(target=_ask, args=(directory / "answers", found), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    if not found:
        _silent.add(directory)
        raise LocksSilent(directory, filesystem_type.name(directory), PATIENCE_S)
    if found[0] is not None:
        raise refused(directory, found[0]) from found[0]


def _ask(path: Path, found: list[OSError | None]) -> None:
    """Whoever else asks at the same time may have it: that is an answer too."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for lock in (fcntl.lockf, fcntl.flock):
                with contextlib.suppress(BlockingIOError, PermissionError):
                    lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError as error:
        found.append(error)
    else:
        found.append(None)


def acquire(path: Path) -> bool:
    """Take the lock, or return False if somebody has it (this process included).

    Raises StoreError where the file cannot be made or the filesystem knows no locks.
    """
    if sys.platform == "win32":
        raise StoreError(
            f"The timeline {path.stem} cannot be kept: this system has no POSIX locks. The session "
            "runs on without a stored timeline; run the kernel on Linux to have one."
        )
    with _turn:
        return path not in _held and _acquire(path)


def _acquire(path: Path) -> bool:
    try:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            # A purge may have unlinked the file between open and lock.
            if _is_at(path, descriptor):
                break
            os.close(descriptor)
        with contextlib.suppress(OSError):  # on a full disk the lock holds without its text
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _holder_text().encode())
    except OSError as error:
        raise refused(path, error) from error
    _held[path] = descriptor
    return True


def release(path: Path, *, remove: bool = False) -> None:
    """Give a lock back that ``acquire`` gave; the second call does nothing."""
    with _turn:
        descriptor = _held.pop(path, None)
        if descriptor is None:
            return
        if remove:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a live process has the lock, told without taking it (Linux; elsewhere: no)."""
    with _turn:
        return path in _held or (sys.platform == "linux" and _is_locked(path))


def _is_locked(path: Path) -> bool:
    """Whether another process has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # struct flock (fcntl(2)): type, whence, start, length, pid.
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        return bool(answer[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """`` (process 12 on host since …)``, or nothing if that is not written there."""
    if path in _held:
        return " (this process)"
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return f" ({text.partition(_BOOT)[0]})" if text.isprintable() and text else ""


def _holder_text() -> str:
    since = datetime.now(timezone.utc).isoformat(" ", "minutes")
    boot = boot_id()
    which = f"{_BOOT}{boot}" if boot else ""
    return f"process {os.getpid()} on {socket.gethostname()} since {since}{which}"


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
