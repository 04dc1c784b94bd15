"""Process images: written once, signed with the user's key, stored by content, mapped as files.

Layout below ``<store>/images/`` (directories 0700, files 0600):

    <64 hex digits>/manifest       what the image is made of, signed; the name is the digest of it
    <64 hex digits>/plan           for the loader (image_format.Plan)
    <64 hex digits>/blocks         address, size and BLAKE2b-256 of each 64 KiB of its memory
    <64 hex digits>/pages.ttpages  memory that the image before it did not have; page aligned
    <64 hex digits>/seal           what the page file is known by: signed, see below
    files                          digests of files that images refer to (file_digests.py)
    lock                           flock: shared while an image is written, exclusive to delete

An image is written after a *base*, most often the one before it of the same session. A block that
is the same as the base's at its address, byte for byte, or whose digest the base has elsewhere, is
taken from there; of another one only those pages are stored that differ from the base's at the
same address. So an image refers to the page files of others, 64 at most; then one is stored whole.
Comparing is several times as fast as hashing, as long as the base is in the page cache.

Invariants. A manifest **must** be authentic, and everything that it names have its digest, before
a byte of the image is mapped: an image is code. A page file **must not** be changed while somebody
may have it mapped: deleting it is no change. An image **must** be on the disk before its directory
gets its name.

Page files are mapped on demand, so they are not read when an image is opened. The *seal* has the
inode, size and times of the page file, as they were when it was written; as long as they are the
same, nobody but root has written to it (the system sets ctime, and nobody can set it back). If they
are not (a copied store, a damaged file), every block is read and compared first. What a disk itself
has garbled is found by ``verify`` only.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Container
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kernel_runtime.store.digests import Digest, digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.file_digests import KeptDigests
from kernel_runtime.store.image_format import FormatError, RunList
from kernel_runtime.store.image_model import (
    PAGE_FILE,
    FileDigests,
    ImageDamaged,
    ImageNotStored,
    ImageUnusable,
    OpenImage,
    Written,
)
from kernel_runtime.store.image_taking import BLOCK_ENTRY, Base, Taking
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.leases import locked
from kernel_runtime.store.paths import private_opener, save, sync

__all__ = [
    "PAGE_FILE",
    "ImageDamaged",
    "ImageNotStored",
    "ImageStore",
    "ImageUnusable",
    "OpenImage",
    "Written",
]

VERSION: Final = 1
FOLDER: Final = "images"

_PURPOSE: Final = "process image 1"
_SEAL_PURPOSE: Final = "process image pages 1"
_PAGE_FILES_MOST: Final = 64
_GRACE_NS: Final = 60 * 10**9
"""An image that was written is not swept for so long: its row may not be committed yet."""


class ImageStore:
    """The images of one store directory. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys | None = None) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self._keys = keys or Keys()
        self.file_digests = KeptDigests(self.path, self._keys)

    # -- writing ------------------------------------------------------------------------------

    def take_in(
        self,
        stream: socket.socket,
        file_digest: FileDigests,
        *,
        base: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> Written:
        """Store what a frozen process writes to the other end of stream; durable on return.

        base: ref of an image that is much the same; one that cannot be used is left aside.
        details: plain JSON, kept in the manifest. Blocks. Raises ImageNotStored, KeyUnusable.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path, exclusive=False), contextlib.ExitStack() as stack:
                older = self._base(base, stack) if base else None
                scratch = self.path / f"tmp-{secrets.token_hex(8)}"
                scratch.mkdir(mode=0o700)
                try:
                    return self._write(scratch, stream, file_digest, older, details or {})
                except BaseException:
                    shutil.rmtree(scratch, ignore_errors=True)
                    raise
        except OSError as cause:
            raise ImageNotStored(cause.strerror or str(cause)) from cause
        except FormatError as cause:
            raise ImageNotStored(str(cause)) from cause

    def _base(self, ref: str, stack: contextlib.ExitStack) -> Base | None:
        try:
            image = stack.enter_context(self.open(ref))
            if len(image.page_files) >= _PAGE_FILES_MOST:
                return None
            names = [name or ref for name in image.manifest["page_files"]]
            base = Base(names, image.parsed(), self._blocks(image), image.page_files)
        except (StoreError, FormatError, OSError):
            return None
        stack.callback(base.close)
        return base

    def _write(
        self,
        scratch: Path,
        stream: socket.socket,
        file_digest: FileDigests,
        base: Base | None,
        details: dict[str, Any],
    ) -> Written:
        with open(scratch / PAGE_FILE, "xb", opener=private_opener) as pages:
            taken = Taking(pages, base)
            taken.all(stream)
            pages.flush()
            os.fsync(pages.fileno())
            stored = os.fstat(pages.fileno())
        plan, names = taken.plan()
        text = plan.encode()
        blocks = bytes(taken.blocks)
        files = []
        for used in taken.files.values():
            digest = file_digest(used)
            files.append([used.path, used.size, used.mtime_ns, used.ctime_ns, digest])
        manifest = {
            "version": VERSION,
            "made_ns": time.time_ns(),
            "head": len(plan.head),
            "plan": [digest_of(text), len(text)],
            "blocks": [digest_of(blocks), len(blocks)],
            "page_files": names,
            "files": sorted(files),
            "bytes": taken.bytes,
            "details": details,
        }
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        signature = self._keys.sign(_PURPOSE, body)
        ref = digest_of(body)
        save(scratch / "plan", text)
        save(scratch / "blocks", blocks)
        save(scratch / "seal", self.seal(ref, stored))
        save(scratch / "manifest", signature.encode() + b"\n" + body)
        sync(scratch)
        os.rename(scratch, self.path / ref)
        sync(self.path)
        return Written(ref, taken.bytes, stored.st_size + len(text) + len(blocks))

    def seal(self, ref: str, found: os.stat_result) -> bytes:
        """What the page file of an image is known by. Raises KeyUnusable."""
        known = [ref, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        body = json.dumps(known).encode()
        return self._keys.sign(_SEAL_PURPOSE, body).encode() + b"\n" + body

    # -- reading ------------------------------------------------------------------------------

    def open(self, ref: str) -> OpenImage:
        """Authenticate an image and open its page files.

        Costs the same at any size, unless a page file was written to since: then its image's blocks
        are read. Raises ImageDamaged (naming the file), ImageUnusable, NotAuthentic, NotTrusted,
        KeyUnusable.
        """
        image = OpenImage(Digest(ref), self.manifest(ref), b"")
        try:
            image.plan = self._named(image, "plan")
            doubtful = set()
            for index, name in enumerate(image.manifest["page_files"]):
                fd, sealed = self._page_file(image.ref, name or ref)
                image.page_files.append(fd)
                if not sealed:
                    doubtful.add(index)
            if doubtful:
                self._check_blocks(image, doubtful)
        except BaseException:
            image.close()
            raise
        return image

    def verify(self, ref: str) -> None:
        """Read all of an image and compare it with its digests. Raises as `open` does."""
        with self.open(ref) as image:
            self._check_blocks(image, set(range(len(image.page_files))))

    def manifest(self, ref: str) -> dict[str, Any]:
        """What an image is made of, authentic. Raises as `open` does."""
        data = self._read(ref, ref, "manifest")
        signature, _, body = data.partition(b"\n")
        what = f"The process image {ref[:12]}"
        self._keys.check(_PURPOSE, body, signature.decode("ascii", "replace"), what)
        if digest_of(body) != ref:
            raise ImageDamaged(ref, "its manifest is that of another image")
        manifest: dict[str, Any] = json.loads(body)
        if manifest.get("version") != VERSION:
            raise ImageUnusable(ref, f"it is of version {manifest.get('version')}, not {VERSION}")
        return manifest

    def _read(self, ref: str, owner: str, name: str) -> bytes:
        path = self.path / owner / name
        try:
            return path.read_bytes()
        except OSError as cause:
            raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause

    def _named(self, image: OpenImage, name: str) -> bytes:
        data = self._read(image.ref, image.ref, name)
        if digest_of(data) != image.manifest[name][0]:
            raise ImageDamaged(image.ref, f"{self.path / image.ref / name} was altered")
        return data

    def _blocks(self, image: OpenImage) -> bytes:
        return self._named(image, "blocks")

    def _page_file(self, ref: str, owner: str) -> tuple[int, bool]:
        path = self.path / owner / PAGE_FILE
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as cause:
            raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause
        try:
            return fd, self._is_sealed(owner, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise

    def _is_sealed(self, owner: str, found: os.stat_result) -> bool:
        try:
            data = (self.path / owner / "seal").read_bytes()
            signature, _, body = data.partition(b"\n")
            self._keys.check(_SEAL_PURPOSE, body, signature.decode("ascii", "replace"), "The seal")
            known = json.loads(body)
        except (OSError, StoreError, ValueError):
            return False
        now = [owner, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        return bool(known == now)

    def _check_blocks(self, image: OpenImage, doubtful: set[int]) -> None:
        runs = RunList(image.parsed().runs)
        for start, size, digest in BLOCK_ENTRY.iter_unpack(self._blocks(image)):
            found = blake2b(digest_size=32)
            touched = []
            for part in runs.segments(start, size):
                if isinstance(part, int):
                    raise ImageDamaged(image.ref, "its plan does not hold what its blocks do")
                touched.append(part.page_file)
                found.update(os.pread(image.page_files[part.page_file], part.size, part.offset))
            if doubtful.isdisjoint(touched) or found.digest() == digest:
                continue
            names = {image.manifest["page_files"][index] or image.ref for index in touched}
            paths = " or ".join(str(self.path / name / PAGE_FILE) for name in sorted(names))
            raise ImageDamaged(image.ref, f"{paths} does not hold what was written")

    # -- deleting -----------------------------------------------------------------------------

    def refs(self) -> list[Digest]:
        """All images; those that are being written not included."""
        with contextlib.suppress(FileNotFoundError):
            return [Digest(d.name) for d in self.path.iterdir() if (d / "manifest").is_file()]
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
        minute before that, or since, is kept, too. A page file that a kept image refers to stays.
        Does nothing while an image is being written. idle: after before_ns no kernel was found to
        use the store, so nobody was about to name what was written in that minute. Raises
        StoreError.
        """
        if not self.path.is_dir():
            return 0
        before = self.stored_bytes()
        try:
            with locked(self.path, exclusive=True):
                self._sweep(keep, before_ns if idle else before_ns - _GRACE_NS)
        except BlockingIOError:
            return 0
        except OSError as cause:
            raise StoreError(
                f"The images in {self.path} could not be cleared up: {cause.strerror}. Those that "
                "are wanted are intact. See that the directory is yours and writable."
            ) from cause
        return max(before - self.stored_bytes(), 0)

    def _sweep(self, keep: Container[str], before_ns: int) -> None:
        kept: set[str] = set()
        page_files: set[str] = set()
        for ref in self.refs():
            path = self.path / ref / "manifest"
            if ref in keep or path.stat().st_mtime_ns >= before_ns:
                kept.add(ref)
                _, _, body = path.read_bytes().partition(b"\n")
                with contextlib.suppress(ValueError):
                    page_files.update(name or ref for name in json.loads(body)["page_files"])
        for directory in self.path.iterdir():
            if directory.name in kept or not directory.is_dir():
                continue
            # manifest first: half a directory is no image
            for name in ("manifest", "plan", "blocks"):
                (directory / name).unlink(missing_ok=True)
            if directory.name not in page_files:
                shutil.rmtree(directory)
