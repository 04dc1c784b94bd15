"""Images that DMTCP wrote, kept for checkpoints: whole files, signed with the user's key.

Layout below ``<store>/dmtcp/`` (directories 0700, files 0600):

    <32 hex digits>/*.dmtcp    one file for each process, as DMTCP wrote it
    <32 hex digits>/*_files/   files that it has copied beside an image, if any
    <32 hex digits>/manifest   names, sizes and digests of them, signed; and what they need
    <32 hex digits>/seal       what the files are known by without reading them: signed
    tmp-<32 hex digits>        taken in, not published yet: not an image

DMTCP reads and writes files below a directory that the session can reach; the store is out of its
reach. So files are moved in (a rename where both are on one filesystem) and given out as links,
which are taken away again as soon as the processes are up. The copied files are given out as
copies: a process that comes back may go on to write to them.

Invariants. A manifest **must** be authentic and every file what it says before one is given out: an
image is code. Files **must** be on the disk before the directory gets its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernel_runtime.later import dataclass
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_model import ImageDamaged, ImageNotStored, ImageUnusable
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.paths import save, sync

VERSION: Final = 1
FOLDER: Final = "dmtcp"

_PURPOSE: Final = "dmtcp image 1"
_SEAL_PURPOSE: Final = "dmtcp image files 1"
_GRACE_NS: Final = 60 * 10**9
_TAKEN: Final = "tmp-"
_CHUNK: Final = 4 << 20


@dataclass(frozen=True)
class Stored:
    """What came of `DmtcpImageStore.publish`."""

    ref: str
    bytes: int


@dataclass(frozen=True)
class HandedOut:
    """Links to an image's files, where DMTCP can read them; see `DmtcpImageStore.take_back`."""

    ref: str
    files: list[Path]
    """The images."""
    names: list[str]
    """Of all files, below the image's directory."""
    beside: list[Path]
    """Directories of files that DMTCP has copied."""
    details: Mapping[str, Any]


class DmtcpImageStore:
    """The images of one store directory. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys | None = None) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self._keys = keys or Keys()

    def take_in(self, files: Sequence[Path]) -> str:
        """Move files, and directories, into the store; return the ref for `publish`.

        Takes no time where the files are on the store's filesystem. Raises ImageNotStored; what
        was taken in until then is deleted.
        """
        ref = secrets.token_hex(16)
        scratch = self.path / (_TAKEN + ref)
        try:
            scratch.mkdir(mode=0o700, parents=True)
            for file in files:
                shutil.move(file, scratch / file.name)
        except OSError as cause:
            shutil.rmtree(scratch, ignore_errors=True)
            raise ImageNotStored(cause.strerror or str(cause)) from cause
        return ref

    def publish(self, ref: str, details: Mapping[str, Any]) -> Stored:
        """Make what was taken in durable, and an image. details: plain JSON, for the manifest.

        Raises ImageNotStored, KeyUnusable.
        """
        scratch = self.path / (_TAKEN + ref)
        try:
            found: list[tuple[str, int, str]] = []
            for path in sorted(scratch.rglob("*")):
                if path.is_dir():
                    sync(path)
                    continue
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                name = str(path.relative_to(scratch))
                found.append((name, path.stat().st_size, _digest(path)))
            names = [name for name, _, _ in found]
            manifest = {
                "version": VERSION,
                "ref": ref,
                "made_ns": time.time_ns(),
                "files": found,
                "details": dict(details),
            }
            body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
            save(scratch / "seal", self._seal(ref, scratch, names))
            save(scratch / "manifest", self._keys.sign(_PURPOSE, body).encode() + b"\n" + body)
            sync(scratch)
            os.rename(scratch, self.path / ref)
            sync(self.path)
        except OSError as cause:
            raise ImageNotStored(cause.strerror or str(cause)) from cause
        return Stored(ref, sum(size for _, size, _ in found))

    def discard(self, ref: str) -> None:
        """Delete what was taken in and not published, or an image. Never raises."""
        for path in (self.path / (_TAKEN + ref), self.path / ref):
            shutil.rmtree(path, ignore_errors=True)

    def hand_out(self, ref: str, directory: Path, beside: Path) -> HandedOut:
        """Authenticate an image and link its files into a directory, which is made.

        beside: where DMTCP looks for what it has copied; that is put there as copies. Files that
        nobody has written to since are not read; others are read and compared. Raises
        ImageDamaged (naming the file), ImageUnusable, NotAuthentic, NotTrusted, KeyUnusable.
        """
        manifest = self._manifest(ref)
        names = [name for name, _, _ in manifest["files"]]
        sealed = self._is_sealed(ref, names)
        for name, size, digest in manifest["files"]:
            path = self.path / ref / name
            try:
                # the size tells a file cut short from another one
                if path.stat().st_size != size:
                    raise ImageDamaged(ref, f"{path} does not have the length it had")
                if not sealed and _digest(path) != digest:
                    raise ImageDamaged(ref, f"{path} does not hold what was written")
            except OSError as cause:
                raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause
        try:
            directory.mkdir(mode=0o700, parents=True)
            files = []
            folders = sorted({beside / Path(name).parent for name in names if "/" in name})
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700, parents=True)
            for name in names:
                if "/" in name:
                    shutil.copy2(self.path / ref / name, beside / name)
                    continue
                files.append(directory / name)
                try:
                    os.link(self.path / ref / name, files[-1])
                except OSError:  # another filesystem, or one without links
                    shutil.copyfile(self.path / ref / name, files[-1])
                    files[-1].chmod(0o600)
        except OSError as cause:
            for path in (directory, *folders):
                shutil.rmtree(path, ignore_errors=True)
            raise ImageUnusable(ref, f"{directory}: {cause.strerror}") from cause
        return HandedOut(ref, files, names, folders, manifest["details"])

    def take_back(self, handed: HandedOut) -> None:
        """Take the links away. Never raises."""
        names = handed.names
        # a link changes a file's ctime; what it is known by without that must be as before
        same = [self._known(handed.ref, name)[:-1] for name in names]
        for file in handed.files:
            with contextlib.suppress(OSError):
                file.unlink()
        with contextlib.suppress(OSError):
            handed.files[0].parent.rmdir()
        for folder in handed.beside:
            shutil.rmtree(folder, ignore_errors=True)
        sealed = self._sealed_as(handed.ref)
        if sealed is not None and [known[:-1] for known in sealed] == same:
            home = self.path / handed.ref
            with contextlib.suppress(OSError, StoreError):
                save(home / "seal.new", self._seal(handed.ref, home, names), again=True)
                os.replace(home / "seal.new", home / "seal")

    def verify(self, ref: str) -> None:
        """Read all of an image and compare it with its digests. Raises as `hand_out` does."""
        for name, _, digest in self._manifest(ref)["files"]:
            path = self.path / ref / name
            try:
                found = _digest(path)
            except OSError as cause:
                raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause
            if found != digest:
                raise ImageDamaged(ref, f"{path} does not hold what was written")

    def _manifest(self, ref: str) -> dict[str, Any]:
        path = self.path / ref / "manifest"
        try:
            data = path.read_bytes()
        except OSError as cause:
            raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause
        signature, _, body = data.partition(b"\n")
        what = f"The DMTCP image {ref[:12]}"
        self._keys.check(_PURPOSE, body, signature.decode("ascii", "replace"), what)
        manifest: dict[str, Any] = json.loads(body)
        if manifest.get("version") != VERSION:
            raise ImageUnusable(ref, f"it is of version {manifest.get('version')}, not {VERSION}")
        if manifest["ref"] != ref:
            raise ImageDamaged(ref, "its manifest is that of another image")
        return manifest

    # what files are known by

    def _known(self, ref: str, name: str) -> list[Any]:
        try:
            found = os.stat(self.path / ref / name)
        except OSError:
            return [name, 0, 0, 0, 0]
        return [name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]

    def _seal(self, ref: str, home: Path, names: Sequence[str]) -> bytes:
        known = [self._known(home.name, name) for name in names]
        body = json.dumps([ref, known]).encode()
        return self._keys.sign(_SEAL_PURPOSE, body).encode() + b"\n" + body

    def _sealed_as(self, ref: str) -> list[list[Any]] | None:
        try:
            data = (self.path / ref / "seal").read_bytes()
            signature, _, body = data.partition(b"\n")
            self._keys.check(_SEAL_PURPOSE, body, signature.decode("ascii", "replace"), "The seal")
            owner, known = json.loads(body)
        except (OSError, StoreError, ValueError):
            return None
        return known if owner == ref else None

    def _is_sealed(self, ref: str, names: Sequence[str]) -> bool:
        return self._sealed_as(ref) == [self._known(ref, name) for name in names]

    # deleting

    def refs(self) -> list[str]:
        """All images; what is not published yet is none."""
        with contextlib.suppress(FileNotFoundError):
            return [d.name for d in self.path.iterdir() if (d / "manifest").is_file()]
        return []

    def stored_bytes(self) -> int:
        """What all images take on the disk."""
        total = 0
        for root, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(root, name)).st_blocks * 512
        return total

    def sweep(self, keep: Container[str], *, before_ns: int, idle: bool = False) -> int:
        """Delete the images that are not to be kept; return the bytes that this freed.

        before_ns: time.time_ns() before it was found out what is to be kept. What was written a
        minute before that, or since, is kept, too. idle: see ``ImageStore.sweep``.
        Raises StoreError.
        """
        freed = 0
        before_ns -= 0 if idle else _GRACE_NS
        try:
            for directory in self.path.iterdir() if self.path.is_dir() else ():
                ref = directory.name.removeprefix(_TAKEN)
                if ref in keep or directory.stat().st_mtime_ns >= before_ns:
                    continue
                freed += sum(path.stat().st_size for path in directory.rglob("*"))
                # first: half a directory is no image
                (directory / "manifest").unlink(missing_ok=True)
                shutil.rmtree(directory)
        except OSError as cause:
            raise StoreError(
                f"The images in {self.path} could not be cleared up: {cause.strerror}. Those that "
                "are wanted are intact. See that the directory is yours and writable."
            ) from cause
        return freed


def _digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=32)
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()
