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

In an encrypted store (encryption.py) manifest, plan and blocks are sealed as a whole, page files in
pieces (image_pages.py), and there is no seal: a piece that opens is the one that was written. What
an image needs is opened into memory then, so a restore costs more for a larger one. An image from
before the store was encrypted stays as it is, and is no base of those that follow.

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

from kernel_runtime.store import encryption
from kernel_runtime.store.cipher import Altered, Cipher
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
from kernel_runtime.store.image_pages import Known, SealedOutput, SealedPages, mapped, pieces_of
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
_SEALED: Final = b"\1"
"""With what a sealed file begins (cipher.py); a manifest begins with a hexadecimal digit."""
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
            cipher = self._cipher()
            with locked(self.path, exclusive=False), contextlib.ExitStack() as stack:
                older = self._base(base, cipher, stack) if base else None
                scratch = self.path / f"tmp-{secrets.token_hex(8)}"
                scratch.mkdir(mode=0o700)
                try:
                    return self._write(scratch, stream, file_digest, older, details or {}, cipher)
                except BaseException:
                    shutil.rmtree(scratch, ignore_errors=True)
                    raise
        except OSError as cause:
            raise ImageNotStored(cause.strerror or str(cause)) from cause
        except FormatError as cause:
            raise ImageNotStored(str(cause)) from cause

    def _cipher(self) -> Cipher | None:
        """Asked each time, as somebody may have encrypted the store since. Raises StoreError."""
        return encryption.cipher_of(self.path.parent)

    def _base(
        self, ref: str, cipher: Cipher | None, stack: contextlib.ExitStack
    ) -> tuple[Base, dict[str, Known]] | None:
        """With what is known of its page files, if they are sealed."""
        try:
            image = stack.enter_context(self._opened(ref))
            known = image.sealed
            if len(image.page_files) >= _PAGE_FILES_MOST or bool(known) != bool(cipher):
                return None
            if cipher:
                pages = [SealedPages(fd, cipher, it) for fd, it in zip(image.page_files, known)]
            names = [name or ref for name in image.manifest["page_files"]]
            base = Base(
                names,
                image.parsed(),
                self._blocks(image),
                pages if cipher else [mapped(fd) for fd in image.page_files],
                sealed=cipher is not None,
            )
        except (StoreError, FormatError, OSError):
            return None
        stack.callback(base.close)
        return base, dict(zip(names, known))

    def _write(
        self,
        scratch: Path,
        stream: socket.socket,
        file_digest: FileDigests,
        base: tuple[Base, dict[str, Known]] | None,
        details: dict[str, Any],
        cipher: Cipher | None,
    ) -> Written:
        older, known = base or (None, {})
        with open(scratch / PAGE_FILE, "xb", opener=private_opener) as pages:
            sealing = SealedOutput(pages, cipher) if cipher else None
            taken = Taking(sealing or pages, older)
            taken.all(stream)
            if sealing:
                known = {**known, "": sealing.finish()}
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
        if cipher:
            manifest["sealed"] = [known[name] for name in names]
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        signature = self._keys.sign(_PURPOSE, body)
        ref = digest_of(body)
        for name, data in (
            ("plan", text),
            ("blocks", blocks),
            ("manifest", signature.encode() + b"\n" + body),
        ):
            save(scratch / name, cipher.seal(data, _purpose(ref, name)) if cipher else data)
        if not cipher:
            save(scratch / "seal", self.seal(ref, stored))
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
        are read. What is sealed is opened into memory, in which it stays until the image is closed.
        Raises ImageDamaged (naming the file), ImageUnusable, NotAuthentic, NotTrusted, KeyUnusable,
        EncryptionLocked.
        """
        image = self._opened(ref)
        try:
            if image.sealed:
                self._open_sealed(image)
        except BaseException:
            image.close()
            raise
        return image

    def _opened(self, ref: str) -> OpenImage:
        """With page files that may be sealed."""
        image = OpenImage(Digest(ref), self.manifest(ref), b"")
        try:
            image.plan = self._named(image, "plan")
            doubtful = set()
            for index, name in enumerate(image.manifest["page_files"]):
                fd, is_known = self._page_file(image, name or ref)
                image.page_files.append(fd)
                if not is_known:
                    doubtful.add(index)
            if doubtful:
                self._check_blocks(image, doubtful)
        except BaseException:
            image.close()
            raise
        return image

    def _open_sealed(self, image: OpenImage) -> None:
        cipher = self._needed_cipher(image.ref)
        image.without_lazy()  # what is mapped from memory would be there twice once it is written
        parts: dict[int, list[tuple[int, int]]] = {}
        for run in image.parsed().runs:
            parts.setdefault(run.page_file, []).append((run.offset, run.size))
        for index, known in enumerate(image.sealed):
            fd = image.page_files[index]
            try:
                pages = SealedPages(fd, cipher, known)
                image.page_files[index] = pages.opened(pieces_of(parts.get(index, ())))
            except Altered as cause:
                path = self.path / (image.manifest["page_files"][index] or image.ref) / PAGE_FILE
                why = f"{path} does not hold what was written ({cause})"
                raise ImageDamaged(image.ref, why) from cause
            except OSError as cause:
                why = f"it could not be opened into memory: {cause.strerror}"
                raise ImageUnusable(image.ref, why) from cause
            os.close(fd)

    def verify(self, ref: str) -> None:
        """Read all of an image and compare it with its digests. Raises as `open` does."""
        with self.open(ref) as image:
            self._check_blocks(image, set(range(len(image.page_files))))

    def manifest(self, ref: str) -> dict[str, Any]:
        """What an image is made of, authentic. Raises as `open` does."""
        signature, _, body = self.manifest_text(ref).partition(b"\n")
        what = f"The process image {ref[:12]}"
        self._keys.check(_PURPOSE, body, signature.decode("ascii", "replace"), what)
        if digest_of(body) != ref:
            raise ImageDamaged(ref, "its manifest is that of another image")
        manifest: dict[str, Any] = json.loads(body)
        if manifest.get("version") != VERSION:
            raise ImageUnusable(ref, f"it is of version {manifest.get('version')}, not {VERSION}")
        return manifest

    def manifest_text(self, ref: str) -> bytes:
        """The manifest as it was signed, after its signature and a newline; **not** authenticated.

        Raises ImageUnusable, EncryptionLocked.
        """
        return self._plain(ref, self._read(ref, "manifest"))

    def _plain(self, ref: str, manifest: bytes) -> bytes:
        is_sealed = manifest.startswith(_SEALED)
        return self._unsealed(ref, "manifest", manifest) if is_sealed else manifest

    def _read(self, ref: str, name: str) -> bytes:
        path = self.path / ref / name
        try:
            return path.read_bytes()
        except OSError as cause:
            raise ImageDamaged(ref, f"{path} cannot be read: {cause.strerror}") from cause

    def _unsealed(self, ref: str, name: str, data: bytes) -> bytes:
        try:
            return self._needed_cipher(ref).open(data, _purpose(ref, name))
        except Altered as cause:
            raise ImageDamaged(ref, f"{self.path / ref / name} was altered") from cause

    def _needed_cipher(self, ref: str) -> Cipher:
        cipher = self._cipher()
        if cipher is None:
            raise ImageUnusable(ref, "it is sealed, and the store is not encrypted any more")
        return cipher

    def _named(self, image: OpenImage, name: str) -> bytes:
        data = self._read(image.ref, name)
        if image.sealed:
            data = self._unsealed(image.ref, name, data)
        if digest_of(data) != image.manifest[name][0]:
            raise ImageDamaged(image.ref, f"{self.path / image.ref / name} was altered")
        return data

    def _blocks(self, image: OpenImage) -> bytes:
        return self._named(image, "blocks")

    def _page_file(self, image: OpenImage, owner: str) -> tuple[int, bool]:
        """And whether what is in it needs no check now: see the module's docstring."""
        path = self.path / owner / PAGE_FILE
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as cause:
            raise ImageDamaged(image.ref, f"{path} cannot be read: {cause.strerror}") from cause
        try:
            return fd, bool(image.sealed) or self._is_as_written(owner, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise

    def _is_as_written(self, owner: str, found: os.stat_result) -> bool:
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

    def plain(self) -> list[Path]:
        """The directories of images that are not sealed, or of what is left of them."""
        return [seal.parent for seal in self.path.glob("*/seal")]

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
                with contextlib.suppress(ValueError, ImageDamaged):
                    _, _, body = self._plain(ref, path.read_bytes()).partition(b"\n")
                    page_files.update(name or ref for name in json.loads(body)["page_files"])
        for directory in self.path.iterdir():
            if directory.name in kept or not directory.is_dir():
                continue
            # manifest first: half a directory is no image
            for name in ("manifest", "plan", "blocks"):
                (directory / name).unlink(missing_ok=True)
            if directory.name not in page_files:
                shutil.rmtree(directory)


def _purpose(ref: str, name: str) -> str:
    return f"process image {ref} {name}"
