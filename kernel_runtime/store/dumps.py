"""Process images that another program has written (CRIU): kept whole, signed, checked before use.

Layout below ``<store>/criu/`` (directories 0700, files 0600):

    <64 hex digits>/manifest   the files, sizes and digests, signed; the name is the digest of it
    <64 hex digits>/seal       what the files are known by: signed, see kernel_runtime.store.images
    <64 hex digits>/files/     what the program has written, and reads again
    lock                       flock: shared while an image is written, exclusive to delete

The libraries that an image refers to are kept apart, once for all (libraries.py); copies that it is
the first to need are made when it is there.

Invariants, as for our own images. A manifest **must** be authentic, and every file have its
digests, before the program is given the directory: an image is code. An image **must** be on the
disk before its directory gets its name. As long as inode, size and times of each file are those of
the seal, nobody has written to it, and it is not read beforehand; else all are read and compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from kernel_runtime.later import dataclass
from kernel_runtime.store import encryption
from kernel_runtime.store.digests import Digest, digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.file_digests import digest_like
from kernel_runtime.store.following import PIECE, pieces_of
from kernel_runtime.store.image_model import (
    FileInUse,
    ImageDamaged,
    ImageNotStored,
    ImageUnusable,
    Written,
)
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.leases import locked
from kernel_runtime.store.libraries import Libraries, OpenFile
from kernel_runtime.store.paths import save, sync

VERSION: Final = 2
_OLDER: Final = 1  # without libraries
FOLDER: Final = "criu"
FILES: Final = "files"

_PURPOSE: Final = "criu image 1"
_SEAL_PURPOSE: Final = "criu image files 1"
NO_COPY: Final = "which it uses, was replaced before the store had a copy of it"

_GRACE_NS: Final = 60 * 10**9
"""An image that was written is not swept for so long: its row may not be committed yet."""


@dataclass(frozen=True)
class OpenDump:
    """An authentic image."""

    ref: Digest
    files: Path
    """The directory that the program is given."""
    details: dict[str, Any]
    bytes: int
    libraries: list[tuple[str, FileInUse]]
    """The files that it refers to, by what the program calls them."""


class DumpStore:
    """The images of one store directory. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys | None = None) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self._keys = keys or Keys()
        self.libraries = Libraries(store, self._keys)

    # -- writing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory for the program to write to, below an own one; gone afterwards if not kept.

        Raises ImageNotStored.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path, exclusive=False):
                own = self.path / f"tmp-{secrets.token_hex(8)}"
                own.mkdir(mode=0o700)
                try:
                    (own / FILES).mkdir(mode=0o700)
                    yield own / FILES
                finally:
                    shutil.rmtree(own, ignore_errors=True)
        except OSError as cause:
            raise ImageNotStored(cause.strerror or str(cause)) from cause

    def keep(
        self,
        files: Path,
        details: dict[str, Any],
        known: Mapping[str, Sequence[str]] | None = None,
        libraries: Callable[[], Sequence[tuple[str, FileInUse]]] = tuple,
    ) -> Written:
        """Make an image of what was written to a scratch directory; durable on return.

        details: plain JSON, kept in the manifest. known: what ``following.follow`` has found.
        libraries: returns what it refers to, with digests, when all else is on the disk; it may
        raise OSError. Of these `copy_libraries` makes copies. Blocks. Raises ImageNotStored,
        KeyUnusable.
        """
        try:
            return self._keep(files, details, known or {}, libraries)
        except OSError as cause:
            raise ImageNotStored(cause.strerror or str(cause)) from cause

    def _keep(
        self,
        files: Path,
        details: dict[str, Any],
        known: Mapping[str, Sequence[str]],
        libraries: Callable[[], Sequence[tuple[str, FileInUse]]],
    ) -> Written:
        listed = {}
        paths = sorted(files.iterdir())
        with ThreadPoolExecutor(1) as other:
            synced = [other.submit(_sync_private, path) for path in paths]  # while they are hashed
            for path in paths:
                with open(path, "rb") as file:
                    listed[path.name] = _digests(file.fileno(), known.get(path.name, ()))
            for one in synced:
                one.result()
        size = sum(path.stat().st_size for path in files.iterdir())
        manifest = {
            "version": VERSION,
            "made_ns": time.time_ns(),
            "files": listed,
            "libraries": [[name, *astuple(file)] for name, file in libraries()],
            "bytes": size,
            "details": details,
        }
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        signature = self._keys.sign(_PURPOSE, body)
        ref = digest_of(body)
        seal = json.dumps(_known(ref, files)).encode()
        own = files.parent
        save(own / "seal", self._keys.sign(_SEAL_PURPOSE, seal).encode() + b"\n" + seal)
        save(own / "manifest", signature.encode() + b"\n" + body)
        sync(files)
        sync(own)
        os.rename(own, self.path / ref)
        sync(self.path)
        return Written(ref, size, size + len(body))

    def copy_libraries(
        self, files: Sequence[OpenFile], wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Make copies of what images refer to, for when it is replaced; no sweep comes in between.

        Blocks. None are made in a store that is encrypted by now. wanted, and what it raises: see
        ``Libraries.keep``.
        """
        if not encryption.is_encrypted(self.path.parent):
            with locked(self.path, exclusive=False):
                self.libraries.keep(files, wanted)

    # -- reading ------------------------------------------------------------------------------

    def open(self, ref: str) -> OpenDump:
        """Authenticate an image.

        Costs the same at any size, unless a file was written to since: then all are read. Raises
        ImageDamaged (naming the file), ImageUnusable, NotAuthentic, NotTrusted, KeyUnusable.
        """
        return self._open(ref, whole=False)

    def verify(self, ref: str) -> None:
        """Read all of an image and compare it with its digests. Raises as `open` does.

        Where there is no copy of a library, the file itself is read.
        """
        self._open(ref, whole=True)

    def _open(self, ref: str, *, whole: bool) -> OpenDump:
        manifest = self._manifest(ref)
        files = self.path / ref / FILES
        if whole or not self._is_sealed(ref, files):
            _compare(ref, files, manifest["files"])
        libraries = [(row[0], FileInUse(*row[1:])) for row in manifest.get("libraries", ())]
        if whole:
            self._verify(ref, [file for _, file in libraries])
        return OpenDump(Digest(ref), files, manifest["details"], manifest["bytes"], libraries)

    def _verify(self, ref: str, files: Sequence[FileInUse]) -> None:
        for file in files:
            try:
                self.libraries.verify(file.digest)
            except FileNotFoundError as cause:
                if not _is_as_it_was(file):
                    raise ImageUnusable(ref, f"{file.path}, {NO_COPY}") from cause
            except OSError as cause:
                what = f"the copy of {file.path}, which it uses, cannot be read"
                raise ImageDamaged(ref, f"{what}: {cause.strerror}") from cause

    def _manifest(self, ref: str) -> dict[str, Any]:
        path = self.path / ref / "manifest"
        try:
            signature, _, body = path.read_bytes().partition(b"\n")
        except OSError as cause:
            raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause
        what = f"The process image {ref[:12]}"
        self._keys.check(_PURPOSE, body, signature.decode("ascii", "replace"), what)
        if digest_of(body) != ref:
            raise ImageDamaged(ref, "its manifest is that of another image")
        manifest: dict[str, Any] = json.loads(body)
        if manifest.get("version") not in (VERSION, _OLDER):
            raise ImageUnusable(ref, f"it is of version {manifest.get('version')}, not {VERSION}")
        return manifest

    def _is_sealed(self, ref: str, files: Path) -> bool:
        try:
            signature, _, body = (files.parent / "seal").read_bytes().partition(b"\n")
            self._keys.check(_SEAL_PURPOSE, body, signature.decode("ascii", "replace"), "The seal")
            return bool(json.loads(body) == _known(ref, files))
        except (OSError, StoreError, ValueError):
            return False

    # -- deleting -----------------------------------------------------------------------------

    def refs(self) -> list[Digest]:
        """All images; those that are being written not included."""
        with contextlib.suppress(FileNotFoundError):
            return [Digest(d.name) for d in self.path.iterdir() if (d / "manifest").is_file()]
        return []

    def sweep(self, keep: Container[str], *, before_ns: int, idle: bool = False) -> None:
        """Delete the images that are not to be kept.

        before_ns: time.time_ns() before it was found out what is to be kept. What was written a
        minute before that, or since, is kept, too. Does nothing while an image is being written.
        idle: see ``ImageStore.sweep``. Raises StoreError.
        """
        if not self.path.is_dir():
            return
        try:
            with locked(self.path, exclusive=True):
                self._sweep(keep, before_ns if idle else before_ns - _GRACE_NS)
        except BlockingIOError:
            return
        except OSError as cause:
            raise StoreError(
                f"The images in {self.path} could not be cleared up: {cause.strerror}. Those that "
                "are wanted are intact. See that the directory is yours and writable."
            ) from cause

    def _sweep(self, keep: Container[str], before_ns: int) -> None:
        for directory in self.path.iterdir():
            manifest = directory / "manifest"
            if not directory.is_dir():
                continue
            if manifest.exists():
                if directory.name in keep or manifest.stat().st_mtime_ns >= before_ns:
                    continue
                manifest.unlink()  # first: half a directory is no image
            shutil.rmtree(directory)
        used: set[str] = set()
        for ref in self.refs():
            _, _, body = (self.path / ref / "manifest").read_bytes().partition(b"\n")
            try:
                used.update(row[-1] for row in json.loads(body).get("libraries", ()))
            except ValueError:
                return  # damaged: it is not known which ones it needs
        self.libraries.sweep(used)


def _is_as_it_was(file: FileInUse) -> bool:
    with contextlib.suppress(OSError), open(file.path, "rb", opener=_not_waiting) as found:
        is_same = file.is_same(os.fstat(found.fileno()))
        return is_same and digest_like(found.fileno(), file.digest) == file.digest
    return False


def _not_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _sync_private(path: Path) -> None:
    """On the disk, and for its owner alone."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), 0o600)
        os.fsync(file.fileno())


def _digests(fd: int, known: Sequence[str] = ()) -> list[Any]:
    """The size of a file, and the digest of each piece of it. known: those of the first ones."""
    size = os.fstat(fd).st_size
    return [size, [*known, *pieces_of(fd, len(known) * PIECE, size)]]


def _compare(ref: str, files: Path, listed: dict[str, Any]) -> None:
    """See that the files are those that were written, and no others. Raises ImageDamaged."""
    try:
        more = {path.name for path in files.iterdir()} - set(listed)
        for name, known in listed.items():
            with open(files / name, "rb") as file:
                if _digests(file.fileno()) != known:
                    raise ImageDamaged(ref, f"{files / name} does not hold what was written")
    except OSError as cause:
        raise ImageDamaged(ref, f"{cause.filename} cannot be read: {cause.strerror}") from cause
    if more:
        raise ImageDamaged(ref, f"{files / min(more)} was put there by somebody else")


def _known(ref: str, files: Path) -> list[Any]:
    """What files are known by that nobody has written to. Raises OSError."""
    known: list[Any] = [ref]
    for path in sorted(files.iterdir()):
        found = path.lstat()
        times = [found.st_mtime_ns, found.st_ctime_ns]
        known.append([path.name, found.st_mode, found.st_ino, found.st_size, *times])
    return known
