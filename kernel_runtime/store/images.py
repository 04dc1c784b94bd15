"""Process images: written once, signed with the user's key, stored by content, mapped as files.

Layout below ``<store>/images/`` (directories 0700, files 0600):

    <64 hex digits>/manifest       what the image is made of, signed; the name is the digest of it
    <64 hex digits>/plan           for the loader (image_format.Plan)
    <64 hex digits>/blocks         address, size and BLAKE2b-256 of each 64 KiB of its memory
    <64 hex digits>/pages.ttpages  memory that the image before it did not have; page aligned
    <64 hex digits>/seal           what the page file is known by: signed, see below
    lock                           flock: shared while an image is written, exclusive to delete

An image is written after a *base*, most often the one before it of the same session. A block
whose digest the base has is taken from there; of another one only those pages are stored that
differ from the base's at the same address. So an image refers to the page files of others, 64 at
most; then one is stored whole.

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
import fcntl
import json
import mmap
import os
import secrets
import shutil
import socket
import struct
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

from kernel_runtime.store.digests import Digest, digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_format import (
    END,
    PIECE,
    RANGE,
    RECORD,
    FormatError,
    Mapping,
    Plan,
    RunBuilder,
    RunList,
    Segment,
    Tag,
    check_head,
    mark_lazy,
)
from kernel_runtime.store.keys import Keys

VERSION: Final = 1
FOLDER: Final = "images"
PAGE_FILE: Final = "pages.ttpages"  # the suffix is known to native/image_pages.c

_PURPOSE: Final = "process image 1"
_SEAL_PURPOSE: Final = "process image pages 1"
_BLOCK: Final = 64 << 10
_PAGE: Final = 4096
_BLOCK_ENTRY: Final = struct.Struct("=QQ32s")
_LAZY_LEAST: Final = 256 << 10
_LAZY_MOST: Final = 10_000
_PAGE_FILES_MOST: Final = 64
_RECORD_MOST: Final = 1 << 17


class ImageNotStored(StoreError):
    """A process image could not be written; the session and its frozen process are as they were."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The process image could not be written: {cause}. Nothing of it is kept; the session "
            "runs on, and other checkpoints are not affected. The next checkpoint tries again."
        )


class ImageUnusable(StoreError):
    """A process image cannot be loaded here: nothing of it was mapped or run."""

    def __init__(self, ref: str, cause: str) -> None:
        super().__init__(
            f"The process image {ref[:12]} cannot be used: {cause}. Nothing of it was loaded. "
            "Other captures of the checkpoint and other checkpoints are not affected."
        )


class ImageDamaged(ImageUnusable):
    """A file of a process image is missing or not what was written: nothing of it was loaded."""


@dataclass(frozen=True)
class FileInUse:
    """A file that an image refers to by its path, as it was when the image was written."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    digest: str = ""

    def is_same(self, found: os.stat_result) -> bool:
        """Whether nobody has written to it or replaced it since, as far as times tell."""
        return (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == (
            self.size,
            self.mtime_ns,
            self.ctime_ns,
        )


FileDigests = Callable[[FileInUse], str]
"""Returns the digest of a file that is still the same. Raises OSError."""


@dataclass(frozen=True)
class Written:
    """What came of `ImageStore.take_in`."""

    ref: Digest
    bytes: int
    """Of memory that the image holds."""
    stored_bytes: int
    """Added to the store."""


@dataclass
class OpenImage:
    """An authentic image, its page files open."""

    ref: Digest
    manifest: dict[str, Any]
    plan: bytes
    page_files: list[int] = field(default_factory=list)

    @property
    def files(self) -> list[FileInUse]:
        """The files that it refers to by their paths."""
        return [FileInUse(*values) for values in self.manifest["files"]]

    def parsed(self) -> Plan:
        """The plan, understood."""
        return Plan.decode(self.plan, self.manifest["head"])

    def close(self) -> None:
        """Let go of the page files. The second call does nothing."""
        while self.page_files:
            os.close(self.page_files.pop())

    def __enter__(self) -> OpenImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ImageStore:
    """The images of one store directory. Thread safe; several processes may use it at once."""

    def __init__(self, store: Path, keys: Keys | None = None) -> None:
        """store: the store's directory, not the one below. Nothing is made before it is used."""
        self.path = store / FOLDER
        self._keys = keys or Keys()

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
            with self._locked(exclusive=False), contextlib.ExitStack() as stack:
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

    def _base(self, ref: str, stack: contextlib.ExitStack) -> _Base | None:
        try:
            image = stack.enter_context(self.open(ref))
            if len(image.page_files) >= _PAGE_FILES_MOST:
                return None
            base = _Base(image, self._blocks(image))
        except (StoreError, FormatError, OSError):
            return None
        stack.callback(base.close)
        return base

    def _write(
        self,
        scratch: Path,
        stream: socket.socket,
        file_digest: FileDigests,
        base: _Base | None,
        details: dict[str, Any],
    ) -> Written:
        with open(scratch / PAGE_FILE, "xb", opener=_private) as pages:
            taken = _Taking(pages, base)
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
        _save(scratch / "plan", text)
        _save(scratch / "blocks", blocks)
        _save(scratch / "seal", self._seal(ref, stored))
        _save(scratch / "manifest", signature.encode() + b"\n" + body)
        _sync(scratch)
        os.rename(scratch, self.path / ref)
        _sync(self.path)
        return Written(ref, taken.bytes, stored.st_size + len(text) + len(blocks))

    def _seal(self, ref: str, found: os.stat_result) -> bytes:
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
        image = OpenImage(Digest(ref), self._manifest(ref), b"")
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

    def _manifest(self, ref: str) -> dict[str, Any]:
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
        for start, size, digest in _BLOCK_ENTRY.iter_unpack(self._blocks(image)):
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

    def sweep(self, keep: Container[str], *, before_ns: int) -> int:
        """Delete the images that are not to be kept; return the bytes that this freed.

        before_ns: time.time_ns() before it was found out what is to be kept. What was written since
        is kept, too. A page file that a kept image refers to stays. Raises StoreError.
        """
        if not self.path.is_dir():
            return 0
        before = self.stored_bytes()
        try:
            with self._locked(exclusive=True):
                self._sweep(keep, before_ns)
        except OSError as cause:
            raise StoreError(
                f"The images in {self.path} could not be cleared up: {cause.strerror}. Those that "
                "are wanted are intact. See that the directory is yours and writable."
            ) from cause
        return max(before - self.stored_bytes(), 0)

    def _sweep(self, keep: Container[str], before_ns: int) -> None:
        wanted: set[str] = set()
        for ref in self.refs():
            path = self.path / ref / "manifest"
            if ref in keep or path.stat().st_mtime_ns >= before_ns:
                _, _, body = path.read_bytes().partition(b"\n")
                with contextlib.suppress(ValueError):
                    wanted.update(name or ref for name in json.loads(body)["page_files"])
                wanted.add(ref)
        for directory in self.path.iterdir():
            if not directory.is_dir():
                continue
            if directory.name not in wanted:
                # manifest first: half a directory is no image
                (directory / "manifest").unlink(missing_ok=True)
                shutil.rmtree(directory)
            elif directory.name not in keep and not _is_newer(directory, before_ns):
                for name in ("manifest", "plan", "blocks"):
                    (directory / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        fd = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)


class _Base:
    """The image before, for what is in it already."""

    def __init__(self, image: OpenImage, blocks: bytes) -> None:
        self.names: list[str] = [name or image.ref for name in image.manifest["page_files"]]
        self._runs = RunList(image.parsed().runs)
        self._places = {
            digest: (start, size) for start, size, digest in _BLOCK_ENTRY.iter_unpack(blocks)
        }
        self._views = [
            mmap.mmap(fd, 0, prot=mmap.PROT_READ) if os.fstat(fd).st_size else None
            for fd in image.page_files
        ]

    def find(self, digest: bytes) -> list[Segment] | None:
        """Where a block with that digest is."""
        place = self._places.get(digest)
        if place is None:
            return None
        parts = list(self._runs.segments(*place))
        segments = [part for part in parts if isinstance(part, Segment)]
        return segments if len(segments) == len(parts) else None

    def at(self, start: int, size: int) -> Iterator[tuple[int, Segment | None, bytes]]:
        """What it has at that address: (size, where, its bytes), in order."""
        for part in self._runs.segments(start, size):
            if isinstance(part, int):
                yield part, None, b""
                continue
            view = self._views[part.page_file]
            assert view is not None  # a run of an empty file would be no run
            yield part.size, part, view[part.offset : part.offset + part.size]

    def close(self) -> None:
        for view in self._views:
            if view is not None:
                view.close()


class _Taking:
    """One image on its way in. Page file 0 is its own, the others are the base's."""

    def __init__(self, pages: BinaryIO, base: _Base | None) -> None:
        self._pages = pages
        self._base = base
        self._end = 0
        self._known: dict[bytes, list[Segment]] = {}
        self._runs = RunBuilder()
        self._head = b""
        self._maps: list[Mapping] = []
        self._guards: list[tuple[int, int]] = []
        self._lazy: list[tuple[int, int]] = []
        self.blocks = bytearray()
        self.files: dict[str, FileInUse] = {}
        self.bytes = 0

    def all(self, stream: socket.socket) -> None:
        """Read to the end. Raises OSError (of the clone, too), FormatError."""
        room = memoryview(bytearray(PIECE))
        while True:
            tag, size = RECORD.unpack(_receive(stream, room[: RECORD.size]))
            if size > _RECORD_MOST:
                raise FormatError("a record is too large")
            record = bytes(_receive(stream, room[:size]))
            if tag == Tag.PAGES:
                start, length = RANGE.unpack(record)
                if not 0 < length <= PIECE or (start | length) % _PAGE:
                    raise FormatError("pages are not aligned")
                self._add(start, _receive(stream, room[:length]))
            elif tag == Tag.MAP:
                self._map(Mapping.decode(record))
            elif tag == Tag.GUARD:
                self._guards.append(RANGE.unpack(record))
            elif tag == Tag.LAZY:
                self._lazy.append(RANGE.unpack(record))
            elif tag == Tag.HEAD:
                check_head(record)
                self._head = record
            elif tag == Tag.END:
                error, maps, length = END.unpack(record)
                if error:
                    raise OSError(error, f"its memory could not be written, {os.strerror(error)}")
                if not self._head or maps != len(self._maps) or length != self.bytes:
                    raise FormatError("parts of the image are missing")
                return
            else:
                raise FormatError(f"there is a record of kind {tag}")

    def plan(self) -> tuple[Plan, list[str]]:
        """The plan, and whose page files it refers to: "" is its own."""
        names = ["", *(self._base.names if self._base else ())]
        used = sorted({run.page_file for run in self._runs.runs})
        index = {old: new for new, old in enumerate(used)}
        runs = [run._replace(page_file=index[run.page_file]) for run in self._runs.runs]
        runs = mark_lazy(runs, self._lazy, _LAZY_LEAST, _LAZY_MOST)
        plan = Plan(self._head, self._maps, runs, self._guards, len(used))
        return plan, [names[old] for old in used]

    def _map(self, m: Mapping) -> None:
        self._maps.append(m)
        if m.path:
            path = os.fsdecode(m.path)
            used = FileInUse(path, m.file_size, m.mtime_ns, m.ctime_ns)
            if self.files.setdefault(path, used) != used:
                raise FormatError(f"{path} changed meanwhile")

    def _add(self, start: int, data: memoryview) -> None:
        self.bytes += len(data)
        at = 0
        while at < len(data):
            size = min(_BLOCK - (start + at) % _BLOCK, len(data) - at)
            piece = data[at : at + size]
            digest = blake2b(piece, digest_size=32).digest()
            self.blocks += _BLOCK_ENTRY.pack(start + at, size, digest)
            found = self._known.get(digest)
            if found is None:
                found = self._find(digest) or self._store(start + at, piece)
                self._known[digest] = found
            place = start + at
            for segment in found:
                self._runs.add(place, segment)
                place += segment.size
            at += size

    def _find(self, digest: bytes) -> list[Segment] | None:
        found = self._base.find(digest) if self._base else None
        return found and [s._replace(page_file=s.page_file + 1) for s in found]

    def _store(self, start: int, piece: memoryview) -> list[Segment]:
        if self._base is None:
            return [self._append(piece)]
        result: list[Segment] = []
        at = 0
        for size, where, old in self._base.at(start, len(piece)):
            if where is None:
                result.append(self._append(piece[at : at + size]))
            else:
                where = where._replace(page_file=where.page_file + 1)
                result += self._compare(piece[at : at + size], where, old)
            at += size
        return result

    def _compare(self, piece: memoryview, where: Segment, old: bytes) -> Iterator[Segment]:
        new = bytes(piece)  # comparing memoryviews goes byte by byte
        for at in range(0, len(new), _PAGE):
            page = new[at : at + _PAGE]
            if page == old[at : at + _PAGE]:
                yield Segment(_PAGE, where.page_file, where.offset + at)
            else:
                yield self._append(page)

    def _append(self, data: memoryview | bytes) -> Segment:
        self._pages.write(data)
        self._end += len(data)
        return Segment(len(data), 0, self._end - len(data))


def _receive(stream: socket.socket, room: memoryview) -> memoryview:
    got = 0
    while got < len(room):
        n = stream.recv_into(room[got:], flags=socket.MSG_WAITALL)
        if n == 0:
            raise FormatError("the process that wrote it ended before its end")
        got += n
    return room


def _is_newer(directory: Path, before_ns: int) -> bool:
    try:
        return (directory / "manifest").stat().st_mtime_ns >= before_ns
    except FileNotFoundError:
        return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _save(path: Path, data: bytes) -> None:
    with open(path, "xb", opener=_private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
