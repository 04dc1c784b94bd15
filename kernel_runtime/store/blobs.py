"""Content-addressed blobs: immutable byte strings named by their BLAKE2b-256.

Layout below the store's directory (0700, files 0600):

    blobs/ab/<64 hex digits>   one blob; its name is the hash of its bytes
    sealed/ab/<96 hex digits>  one blob of an encrypted store; its name is that hash, encrypted
    held/<64 hex digits>       a whole file kept without reading it: a reflink or a hard link
    pins/<64 hex digits>       an empty file: this blob, and what it names, is wanted
    leases/<name>              what a live engine relies on, though nothing pins it
    tmp/                       blobs being written
    lock                       flock: shared while blobs are added, exclusive to delete some
    collector                  flock: one collector of garbage at a time

Invariants. A blob **must** be durable before anything durable names it: call `flush` before
the transaction that publishes a checkpoint. A blob **must** never be used unverified: `get`
and `write_into` hash what they read. A name that exists **must** not be taken for content that
exists: `put` compares, so writing damaged content again heals it. Left-over files in tmp/
**should** be removed, and are, a day later.

The workspace's blobs are stored as given: reflinked chunks share blocks with the user's files,
which compressed ones cannot. Other users of this class give a codec (``coding``).

A blob may be written as a delta to another, its *base*, which **must** be kept as long: `bases`
says which those are. One that is there but damaged is written anew as a whole, and none becomes a
delta to what is one to it, so there is no circle.

In an encrypted store (``encryption``) blobs are sealed as they are written, whatever the codec, and
nothing is reflinked, held or a delta: what one is to would be known only by opening it. What was
stored before stays where it is, and is found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from kernel_runtime.store import encryption, locks
from kernel_runtime.store.blob_files import DEEPEST, BlobFiles
from kernel_runtime.store.cipher import OVERHEAD
from kernel_runtime.store.coding import Codec, Older
from kernel_runtime.store.digests import (
    BlobDamaged,
    BlobError,
    BlobMissing,
    BlobNotStored,
    BlobStoreFull,
    Digest,
    digest_of,
)
from kernel_runtime.store.paths import sync
from kernel_runtime.store.reflinks import clone_file, clone_range, sync_filesystem
from kernel_runtime.store.shelf import SweepResult

__all__ = [
    "BlobDamaged",
    "BlobError",
    "BlobMissing",
    "BlobStore",
    "BlobStoreFull",
    "Digest",
    "SweepResult",
    "digest_of",
]

_FSYNC_ONE_BY_ONE: Final = 64  # above this many new files one syncfs is cheaper
_KNOWN_GOOD_LIMIT: Final = 1 << 15
_STALE_TMP_S: Final = 86_400.0
_PARTS: Final = ("blobs", "held", "leases", "pins", "tmp")

_O_CLOEXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
_O_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)


class BlobStore(BlobFiles):
    """One store directory. Several processes may use it at once; methods are thread safe."""

    def __init__(self, path: Path, codec: Codec | None = None, *, home: Path | None = None) -> None:
        """Create what is missing below path. Raises OSError if that is not possible.

        codec: how blobs are written into their files; always the same for one path. home: the
        store's directory, which says whether it is encrypted (default: path). Raises
        EncryptionLocked, EncryptionDamaged, EncryptionUnavailable.
        """
        super().__init__(path, codec, home)
        sealed = () if self._cipher is None else (path / "sealed",)
        for part in (path, *(path / name for name in _PARTS), *sealed):
            if not part.is_dir():
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync(part.parent)
        locks.ask(self._home)
        for name in ("lock", "collector"):  # or deleting would need room
            with self._locked(exclusive=False, name=name):
                pass
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._own = threading.local()
        self._serial = 0
        self._made: set[str] = set()
        self._unsynced: list[str] = []
        self._known_good: dict[str, tuple[int, int, int]] = {}
        self._written: dict[str, tuple[int, int]] = {}
        """What a file looked like before others could find it, and mark it as wanted."""
        self._relied_on: set[Digest] = set()
        """What others were found to be deltas to: an addition that fails does not take it."""
        self.put_bytes = 0
        """Bytes added by this object since it was made; what existed already is not counted."""
        self.touched_ns = 0
        """What is put or touched is marked as wanted at this time at least; see ``sweep``."""
        self._remove_stale()

    # -- writing ------------------------------------------------------------------------------

    def put(
        self,
        data: bytes | memoryview,
        *,
        clone: tuple[int, int] | None = None,
        older: Digest | None = None,
    ) -> Digest:
        """Store data and return its name. Not durable before `flush`.

        clone: (descriptor, offset) of a file of our own that holds the same bytes, block
        aligned, on a filesystem that can share blocks; writing is then free. older: a blob that
        this one may be much like; it may become a delta to it where the codec knows these.
        Raises BlobStoreFull, or BlobNotStored where the store cannot be written.
        """
        digest = digest_of(data)
        target = self._file(digest)
        if self._matches(digest, target, data):
            self._mark(target)
        else:
            self._write(digest, target, data, clone, older)
        self._remember(digest, target)
        return digest

    def touch(self, digest: Digest) -> bool:
        """Whether a good blob is there; from now on it is as wanted as one just put.

        Reads one that this object has not seen before, and what it is a delta to.
        """
        try:
            with self._locked(exclusive=False):
                bases = self._chain(self._found(digest))
                self._relied_on.update(bases)
                unknown = [one for one in (digest, *bases) if not self._renew(one)]
            for one in unknown:
                self.get(one)
                target = self._found(one)
                self._will_sync(target)
                self._remember(one, target)
        except (OSError, BlobError):
            return False
        return True

    def scratch_clone(self, fd: int) -> int | None:
        """A nameless file of our own that shares all blocks with fd, or None if refused.

        Its content is not sealed, but it is in no directory and gone when it is closed.
        """
        temporary: int = getattr(os, "O_TMPFILE", 0)
        try:
            scratch = os.open(self.path / "tmp", os.O_RDWR | temporary | _O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            clone_file(scratch, fd)
        except OSError:
            os.close(scratch)
            return None
        return scratch

    def hold(self, dir_fd: int, name: bytes, source_fd: int, token: Digest) -> str:
        """Keep a whole file under token without reading it. Returns "clone" or "link".

        A clone is independent of the file. A hard link protects against deletion and
        replacement of the file, not against writing into it. Raises OSError where the
        filesystems differ or the link is refused, and in an encrypted store.
        """
        if self._cipher is not None:
            raise OSError(errno.EOPNOTSUPP, "the store is encrypted, and a link would not be")
        target = str(self.path / "held" / token)
        if os.path.lexists(target):
            os.unlink(target)
        fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _O_CLOEXEC, 0o600)
        try:
            clone_file(fd, source_fd)
        except OSError:
            os.unlink(target)
        else:
            self._will_sync(target)
            return "clone"
        finally:
            os.close(fd)
        os.link(name, target, src_dir_fd=dir_fd, follow_symlinks=False)
        self._will_sync(os.path.dirname(target))  # the file itself is the user's
        return "link"

    def flush(self) -> None:
        """Make everything put so far durable. Raises OSError if the disk refuses.

        Must be called, and succeed, before a record that names these blobs is committed.
        """
        # One at a time: what another thread is syncing now may be what the caller needs.
        with self._flushing:
            with self._lock:
                pending, self._unsynced = self._unsynced, []
            try:
                if len(pending) > _FSYNC_ONE_BY_ONE:
                    self._sync_all()
                elif pending:
                    for name in pending:
                        _sync_if_there(name)
                    for parent in {os.path.dirname(name) for name in pending}:
                        _sync_if_there(parent)
                    sync(self.path / "blobs")  # new folders in it
                    if self._cipher is not None:
                        sync(self.path / "sealed")
            except OSError:
                with self._lock:
                    self._unsynced = pending + self._unsynced
                raise

    # -- deleting -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def adding(self) -> Iterator[list[Digest]]:
        """Around everything that adds blobs and the lease that names them: no sweep within.

        Gives what this thread has written, as it is written; what was there is not in it.
        """
        with self._locked(exclusive=False):
            self._own.added = []
            yield self._own.added

    def discard_added(self) -> int:
        """Delete what this thread's last `adding` wrote; see `discard`."""
        added: list[Digest] = getattr(self._own, "added", [])
        self._own.added = []
        return self.discard(added)

    def discard(self, added: Iterable[Digest]) -> int:
        """Delete what this object wrote, as far as no other has found it there since.

        For an addition that failed; returns the number of blobs deleted.
        """
        count = 0
        with self._locked(exclusive=True):
            for digest in added:
                if digest in self._relied_on:
                    continue
                name = self._file(digest)
                with contextlib.suppress(OSError):
                    found = os.stat(name)
                    if self._written.pop(digest, None) == (found.st_ino, found.st_mtime_ns):
                        os.unlink(name)
                        count += 1
        return count

    def pin(self, digest: Digest) -> None:
        """Want this blob, and all that it names, until `unpin`. Durable after `flush`."""
        target = f"{self.path}/pins/{digest}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | _O_CLOEXEC, 0o600))
        self._will_sync(target)

    def seal_plain(self) -> Iterator[tuple[Digest, int]]:
        """Seal the blobs from before the store was encrypted, and delete them as they were.

        Yields each with its bytes; those that are damaged are left. No other process may use the
        store. Raises BlobStoreFull, BlobNotStored, OSError: what was done so far is complete.
        """
        batch: list[Digest] = []
        for digest in [*self.plain_blobs(), None]:
            if digest is not None:
                with contextlib.suppress(BlobMissing, BlobDamaged):
                    self.put(self.get(digest))
                    batch.append(digest)
            if len(batch) >= 200 or digest is None:
                self.flush()
                for done in batch:
                    name = self.plain_file(done)
                    size = name.stat().st_size
                    name.unlink()
                    yield done, size
                batch = []

    def make_whole(self, digests: Iterable[str]) -> None:
        """Write those of these blobs anew that are deltas: nothing else is needed to read them.

        Those that cannot be read stay as they are, which is raised in the end. Raises BlobError,
        OSError. At any moment each is durable in one way or the other.
        """
        problem: BlobError | None = None
        sealed = []
        for digest in map(Digest, digests):
            plain, target = str(self.plain_file(digest)), self._file(digest)
            if self._base_of(plain) is None:
                continue
            try:
                self._write(digest, target, self.get(digest), replaces=True)
            except (BlobMissing, BlobDamaged) as error:
                problem = problem or error
            else:
                sealed += [plain] if target != plain else []
        self.flush()
        for plain in sealed:
            os.unlink(plain)
        if problem is not None:
            raise problem

    # -- inside -------------------------------------------------------------------------------

    def _encode(
        self, digest: Digest, target: str, data: bytes | memoryview, older: Digest | None
    ) -> bytes | memoryview:
        """Into the bytes of the file that it is written into. Raises OSError."""
        stored = self._codec.encode(data)
        for base in self._older(digest, target, older):
            delta = self._codec.encode_delta(data, base, len(stored))
            if delta is not None and self._rely_on(base):
                stored = delta
                break
        if self._cipher is not None:
            return self._cipher.seal(stored, f"blob {digest}")
        if encryption.is_encrypted(self._home):
            raise OSError(errno.EACCES, "it was encrypted meanwhile; start this program again")
        return stored

    def _older(self, digest: Digest, target: str, older: Digest | None) -> Iterator[Older]:
        """What a blob may be a delta to, **not verified**: first what is whole, then what was last.

        Nothing where it must not be one.
        """
        if older is None or self._cipher is not None or os.path.lexists(target):
            return
        chain = [older, *self._chain(self._found(older))]
        if digest in chain:
            return
        for base in dict.fromkeys((chain[-1], older)):
            if base == chain[-1] or len(chain) <= DEEPEST:
                with contextlib.suppress(BlobError):
                    yield Older(base, self._read(base))

    def _rely_on(self, base: Older) -> bool:
        """Whether a blob is good as it was read; no sweep, and no addition that fails, takes it
        from now on."""
        if digest_of(base.data) != base.digest:
            return False
        try:
            bases = [base.digest, *self._chain(self._found(base.digest))]
            self._relied_on.update(bases)
            for one in bases:
                if not self._renew(one):
                    self._will_sync(self._found(one))
        except OSError:
            return False
        return True

    def _renew(self, digest: Digest) -> bool:
        """Mark a blob as wanted; whether this is the file that was seen to be good. Raises OSError
        where it is gone."""
        target = self._found(digest)
        known = self._is_known(digest, os.stat(target))
        self._mark(target)
        if known:
            self._remember(digest, target)
        return known

    def _mark(self, target: str) -> None:
        """A sweep that is under way sees that this blob is wanted again, and an addition that
        fails that others have found it: clocks of filesystems tick each few milliseconds."""
        least = max(self.touched_ns, os.stat(target).st_mtime_ns + 1)
        os.utime(target)
        if os.stat(target).st_mtime_ns < least:
            os.utime(target, ns=(least, least))

    def _will_sync(self, target: str) -> None:
        """At the next flush. What another process has written may be in memory alone: that one
        may have been killed before its own flush."""
        with self._lock:
            self._unsynced.append(target)

    def _is_known(self, digest: Digest, found: os.stat_result) -> bool:
        """Whether this is the file that was seen to be good."""
        return self._known_good.get(digest) == _looks(found)

    def _matches(self, digest: Digest, target: str, data: bytes | memoryview) -> bool:
        """Whether the file of this name is there with these bytes; reads it at most once.

        What it is a delta to is marked as wanted, too.
        """
        try:
            found = os.stat(target)
            extra = 0 if self._cipher is None else OVERHEAD
            if self._codec.is_plain and found.st_size != len(data) + extra:
                return False
            bases = self._chain(target)
            self._relied_on.update(bases)
            if not all([self._is_known(digest, found), *map(self._renew, bases)]):
                with open(target, "rb") as file:
                    if self._decode(digest, target, file.read()) != data:
                        return False
                for one in (target, *map(self._found, bases)):
                    self._will_sync(one)
        except (OSError, ValueError):
            return False
        return True

    def _remember(self, digest: Digest, target: str) -> None:
        """Note what a good blob's file looks like, so that it is not read again."""
        found = os.stat(target)
        with self._lock:
            if len(self._known_good) >= _KNOWN_GOOD_LIMIT:
                self._known_good.clear()
            self._known_good[digest] = _looks(found)

    def _write(
        self,
        digest: Digest,
        target: str,
        data: bytes | memoryview,
        clone: tuple[int, int] | None = None,
        older: Digest | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        """replaces: a good file, which must not be gone before this one is on the disk."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        temporary = f"{self.path}/tmp/{os.getpid()}-{id(self):x}-{serial}"
        is_there = os.path.lexists(target)
        try:
            self._make_folder(target)
            stored = self._encode(digest, target, data, older)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | _O_CLOEXEC | _O_NOFOLLOW
            fd = os.open(temporary, flags, 0o600)
            try:
                self._fill(fd, stored, clone)
                if replaces:
                    os.fsync(fd)
                self._mark(temporary)
                written = os.fstat(fd)
            finally:
                os.close(fd)
            if is_there:
                os.rename(temporary, target)
            elif not _is_first(temporary, target):
                # another process was faster: if this addition fails, the other's must stay
                if self._matches(digest, target, data):
                    self._mark(target)
                    os.unlink(temporary)
                    return
                os.rename(temporary, target)
        except OSError as cause:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if cause.errno in (errno.ENOSPC, errno.EDQUOT):
                raise BlobStoreFull(self.path, len(data), _free(self.path)) from cause
            raise BlobNotStored(self.path, cause) from cause
        self._will_sync(target)
        with self._lock:
            self.put_bytes += len(stored)
            if len(self._written) >= _KNOWN_GOOD_LIMIT:
                self._written.clear()  # left to the next sweep
            self._written[digest] = written.st_ino, written.st_mtime_ns
        added: list[Digest] | None = getattr(self._own, "added", None)
        if added is not None:
            added.append(digest)

    def _fill(self, fd: int, data: bytes | memoryview, clone: tuple[int, int] | None) -> None:
        if clone is not None and self._cipher is None:
            try:
                clone_range(fd, 0, clone[0], clone[1], len(data))
                return
            except OSError:
                os.ftruncate(fd, 0)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def _make_folder(self, target: str) -> None:
        folder = os.path.dirname(target)
        if folder not in self._made:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._made.add(folder)

    def _sync_all(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | _O_CLOEXEC)
        try:
            sync_filesystem(fd)
        finally:
            os.close(fd)

    def remove_unfinished(self) -> None:
        """Delete what was being written when its writer ended. Nobody may be writing now."""
        self._remove_stale(0.0)

    def _remove_stale(self, age_s: float = _STALE_TMP_S) -> None:
        limit = time.time() - age_s
        for file in (self.path / "tmp").iterdir():
            with contextlib.suppress(OSError):
                if not age_s or file.lstat().st_mtime < limit:
                    file.unlink()


def _looks(found: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file is written."""
    return found.st_ino, found.st_size, found.st_ctime_ns


def _is_first(temporary: str, target: str) -> bool:
    """Give a file its name, unless another one has it."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:  # a filesystem without hard links
        os.rename(temporary, target)
        return True
    os.unlink(temporary)
    return True


def _sync_if_there(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # swept since
        sync(name)


def _free(path: Path) -> int | None:
    statvfs: Callable[[Path], os.statvfs_result] | None = getattr(os, "statvfs", None)
    if statvfs is None:
        return None
    found = statvfs(path)
    return found.f_bavail * found.f_frsize
