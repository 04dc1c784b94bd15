"""Where namespaces are kept: content-addressed, compressed, and signed with the user's key.

Layout below ``<store>/namespaces/``: that of ``blobs``. A manifest is a blob too, and names all
others; its digest is the ``ref`` of the capture:

    timetravel manifest 1 <key id>:<64 hex digits>\\n
    <JSON, keys sorted, no blanks>

The signature is the user's over the JSON. As a manifest names its blobs by their hashes, it covers
every byte that is loaded.

Invariants. A dump **must** lie within `writing`, from the question what is missing until the row
that names its manifest is committed: what was touched meanwhile is not swept. `flush` **must**
succeed before that row is committed. A manifest **must** be read with `manifest` before anything
of it is unpickled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kernel_runtime.store.blobs import BlobStore, SweepResult
from kernel_runtime.store.coding import LARGEST, Compressed
from kernel_runtime.store.digests import BlobDamaged, BlobMissing, BlobNotStored, Digest
from kernel_runtime.store.errors import StoreError, refused
from kernel_runtime.store.keys import Keys, NotTrusted, signer

VERSION: Final = 1
FOLDER: Final = "namespaces"

_HEAD: Final = b"timetravel manifest 1 "
_HEAD_LENGTH: Final = len(_HEAD) + 16 + 1 + 64  # key id, colon, signature
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_serials: Final = itertools.count()


class NamespaceUnusable(StoreError):
    """A manifest cannot be used: it is none, or of a version that is not known."""

    def __init__(self, digest: str, cause: str) -> None:
        super().__init__(
            f"The namespace {digest[:12]!r} cannot be used: {cause}. Nothing of it was stored or "
            "loaded. Other checkpoints are not affected."
        )


class NamespaceStore:
    """The namespaces of one store directory. Thread safe; several processes may use it at once."""

    folder = FOLDER
    purpose = "namespace manifest 1"
    """Of the signatures of manifests."""

    def __init__(self, store: Path, keys: Keys | None = None) -> None:
        """store: the store's directory, not the one below. Raises StoreError, EncryptionLocked."""
        try:
            self._blobs = BlobStore(store / self.folder, Compressed(), home=store)
        except OSError as cause:
            raise refused(store / self.folder, cause) from cause
        self._keys = keys or Keys()
        self._lock = threading.Lock()
        self._writers = 0
        self._fresh: set[Digest] = set()

    @property
    def path(self) -> Path:
        """The directory of these namespaces."""
        return self._blobs.path

    @property
    def put_bytes(self) -> int:
        """Bytes that were added on the disk by this object; what existed is not counted."""
        return self._blobs.put_bytes

    # -- writing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around one dump until its manifest's digest is committed. Several may be open.

        What is put, or found to be there, meanwhile is not swept, by any process. It ends with
        the process, however that ends. If the store itself was full or failed, the room that it
        took is given back; a commit that failed may have happened all the same. Raises StoreError.
        """
        name = f"{os.getpid()}-{id(self):x}-{next(_serials)}"
        try:
            with self._blobs.adding():
                lease = self._blobs.lease(name)
                begun_ns = os.stat(self.path / "leases" / name).st_mtime_ns
        except OSError as cause:
            raise refused(self.path, cause) from cause
        with self._lock:
            self._writers += 1
            self._blobs.touched_ns = max(self._blobs.touched_ns, begun_ns)
        failed = False
        try:
            yield
        except BlobNotStored:
            failed = True
            raise
        finally:
            with self._lock:
                self._writers -= 1
                # What another dump relies on by now is not among the fresh ones any more.
                if failed and not self._writers:
                    with contextlib.suppress(OSError):
                        self._blobs.discard(self._fresh)
                if not failed or not self._writers:
                    self._fresh.clear()
                if not self._writers:
                    self._blobs.touched_ns = 0
            lease.close()

    def missing(self, digests: Iterable[str]) -> set[str]:
        """Which of these are not there, or damaged: they have to be put.

        Reads those that this object has neither put nor seen before: once in a session.
        """
        asked = {_checked(digest) for digest in digests}
        with self._lock:
            self._fresh -= asked
        return {digest for digest in asked if not self._blobs.touch(digest)}

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        """Store the bytes of that hash. Not durable before `flush`.

        older: a blob that it may be much like. Raises BlobDamaged where data has another hash,
        BlobStoreFull or BlobNotStored where the store cannot be written, and then this blob is not
        there.
        """
        if self._put(data, None if older is None else _checked(older)) != digest:
            raise BlobDamaged(digest)

    def save_manifest(self, manifest: dict[str, Any]) -> str:
        """Sign a manifest and store it; the digest is what ``manifest`` takes.

        Raises KeyUnusable, BlobStoreFull, BlobNotStored. Not durable before `flush`.
        """
        text = _text_of(manifest)
        return self._save(self._keys.sign(self.purpose, text), text)

    def save_foreign(self, manifest: dict[str, Any], signature: str) -> str:
        """Store a manifest with the signature that came with it; ``adopt`` makes it ours.

        Raises NamespaceUnusable (it is no signature), BlobStoreFull, BlobNotStored.
        """
        if signer(signature) is None:
            raise NamespaceUnusable("", f"{signature[:100]!r} is no signature")
        return self._save(signature, _text_of(manifest))

    def adopt(self, digest: str) -> str:
        """Sign with the user's key what another key signed: a person trusts where it comes from.

        Returns the digest of the manifest as it is ours, which the capture must name instead.
        Raises NamespaceUnusable, KeyUnusable, BlobError.
        """
        _, text = self._parts(digest)
        return self._save(self._keys.sign(self.purpose, text), text)

    def flush(self) -> None:
        """Make everything put so far durable. Raises StoreError if the disk refuses."""
        try:
            self._blobs.flush()
        except OSError as cause:
            raise refused(self.path, cause) from cause

    # -- reading ------------------------------------------------------------------------------

    def get(self, digest: str) -> bytes:
        """The bytes of that hash, verified. Raises BlobMissing or BlobDamaged."""
        return self._blobs.get(_checked(digest))

    def get_some(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Those of a few blobs that are there and good, verified: faster than one by one."""
        found = self._blobs.get_some([_checked(digest) for digest in digests])
        return {str(digest): data for digest, data in found.items()}

    def manifest(self, digest: str) -> dict[str, Any]:
        """A manifest that this user's sessions have written, so that it may be loaded.

        Raises NotTrusted (another's), NotAuthentic (altered), NamespaceUnusable (no manifest, or
        of a newer version), BlobMissing, BlobDamaged, KeyUnusable.
        """
        signature, text = self._parts(digest)
        self._keys.check(self.purpose, text, signature, f"The namespace {digest[:12]}")
        return _read(digest, text)

    def is_trusted(self, digest: str) -> bool:
        """Whether the user's key signed it. Raises what `manifest` raises, but NotTrusted."""
        try:
            self.manifest(digest)
        except NotTrusted:
            return False
        return True

    def look_at(self, digest: str) -> tuple[dict[str, Any], str]:
        """A manifest to look at, **not to load**, and its signature, by whatever key.

        Raises NamespaceUnusable, BlobMissing, BlobDamaged.
        """
        signature, text = self._parts(digest)
        return _read(digest, text), signature

    def needs(self, digest: str) -> set[str]:
        """The blobs that a manifest names, itself not included, whoever signed it.

        Raises NamespaceUnusable, BlobMissing, BlobDamaged.
        """
        manifest, _ = self.look_at(digest)
        return self.named_in(manifest, digest)

    def named_in(self, manifest: dict[str, Any], digest: str = "") -> set[str]:
        """Likewise, of one that may not be stored yet. Raises NamespaceUnusable."""
        try:
            return set(map(_checked, self._names_in(manifest)))
        except (KeyError, TypeError, ValueError) as cause:
            raise NamespaceUnusable(digest, f"its list is incomplete ({cause!r})") from cause

    def bases(self, digests: Iterable[str]) -> set[str]:
        """What these are deltas to, as deep as it goes: needed to read them."""
        return set(self._blobs.bases(digests))

    def bytes_of(self, digests: Iterable[str]) -> int:
        """Bytes on the disk that these blobs take; what is not there takes none."""
        return self._blobs.room(map(_checked, set(digests)))

    def charges(self, order: Iterable[tuple[str, str]]) -> dict[str, int]:
        """Bytes on the disk that each checkpoint adds to those before it in this order.

        order: checkpoint ids with their manifests, as ``retention.charging_order`` has them. What
        cannot be read adds nothing.
        """
        known: set[str] = set()
        found = {}
        for id, manifest in order:
            needed = {manifest}
            with contextlib.suppress(StoreError):
                needed |= self.needs(manifest)
            needed -= known
            needed |= self.bases(needed) - known
            found[id] = self.bytes_of(needed)
            known |= needed
        return found

    def blobs(self) -> Iterator[str]:
        """The digests of all blobs and manifests that there are."""
        return self._blobs.blobs()

    def plain_bytes(self) -> int:
        """Bytes that lie there as they were before the store was encrypted."""
        return self._blobs.plain_bytes()

    def seal_plain(self) -> Iterator[tuple[str, int]]:
        """Seal those: see ``BlobStore.seal_plain``."""
        return self._blobs.seal_plain()

    # -- deleting -----------------------------------------------------------------------------

    def sweep(self, kept: Callable[[], Iterable[str]]) -> SweepResult:
        """Delete what no kept manifest needs. Writes nothing, so it works on a full disk.

        kept: gives the manifests of all checkpoints of the store, ready or pending; it is asked
        at the right moment, after which what is committed is spared all the same. Raises
        StoreError, and deletes nothing, where a manifest that is kept cannot be read: delete its
        checkpoint, or bring the manifest back.
        """
        with self._blobs.collecting() as (_, before_ns):
            begun = self._begun()
            if any(moment > before_ns for moment in begun):
                return SweepResult(0, 0)  # the clock went back: what a dump has touched looks old
            return self._blobs.sweep(self.wanted(kept()), before_ns=min([before_ns, *begun]))

    def remove_unfinished(self) -> None:
        """See ``BlobStore.remove_unfinished``."""
        self._blobs.remove_unfinished()

    def wanted(self, manifests: Iterable[str]) -> set[str]:
        """These manifests and all that they need, also to be read. Raises StoreError if one cannot
        be read."""
        named = self._named(manifests)
        return named | self.bases(named)

    def forget_unnamed(self, kept: Iterable[str]) -> None:
        """Make the next `sweep` delete all that no kept manifest names.

        Otherwise what one names may be stored as a delta to what none does any more. Raises
        StoreError: of what cannot be read what it is a delta to stays, too.
        """
        try:
            with self.writing(), self._blobs.adding():
                named = self._named(kept)
                self._blobs.make_whole(one for one in named if self.bases([one]) - named)
        except OSError as cause:
            raise refused(self.path, cause) from cause

    # -- inside -------------------------------------------------------------------------------

    def _named(self, manifests: Iterable[str]) -> set[str]:
        """These manifests and what they name. Raises StoreError if one cannot be read."""
        found: set[str] = set()
        for digest in set(manifests):
            found.add(digest)
            # One that is gone has nothing left that anyone could find.
            with contextlib.suppress(BlobMissing):
                found |= self.needs(digest)
        return found

    @staticmethod
    def _names_in(manifest: dict[str, Any]) -> Iterable[str]:
        """The blobs that a manifest names. Raises KeyError, TypeError or ValueError."""
        return [
            name
            for unit in manifest["units"]
            for pieces in (unit["stream"], *unit["buffers"])
            for name, _ in pieces
        ]

    def _begun(self) -> list[int]:
        """When the dumps that are open now began, in the time of the store's filesystem."""
        found = []
        for file in (self.path / "leases").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(file.stat().st_mtime_ns)
        return found

    def _save(self, signature: str, text: bytes) -> str:
        if len(text) > LARGEST - _HEAD_LENGTH:
            raise NamespaceUnusable("", f"its list would have {len(text)} bytes")
        return self._put(b"".join((_HEAD, signature.encode(), b"\n", text)))

    def _put(self, data: bytes | memoryview, older: Digest | None = None) -> Digest:
        with self._blobs.adding() as added:
            digest = self._blobs.put(data, older=older)
            with self._lock:
                self._fresh.discard(digest)
                self._fresh.update(added)
        return digest

    def _parts(self, digest: str) -> tuple[str, bytes]:
        """Signature and JSON of a manifest."""
        data = self._blobs.get(_checked(digest))
        head, text = data[:_HEAD_LENGTH], data[_HEAD_LENGTH + 1 :]
        signature = head[len(_HEAD) :].decode("ascii", "replace")
        if not head.startswith(_HEAD) or signer(signature) is None:
            raise NamespaceUnusable(digest, "it is not a manifest of this version")
        return signature, text


def _checked(digest: str) -> Digest:
    """A digest, which becomes part of a path. Raises NamespaceUnusable for any other text."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise NamespaceUnusable(str(digest), "that is not the name of a blob")
    return Digest(digest)


def _text_of(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode("ascii")


def _read(digest: str, text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError as cause:
        raise NamespaceUnusable(digest, "its list is no JSON") from cause
    found = manifest.get("version") if isinstance(manifest, dict) else None
    if found != VERSION:
        raise NamespaceUnusable(
            digest, f"its version is {found!r}, and this jupyter_timetravel knows {VERSION}"
        )
    return manifest  # type: ignore[no-any-return]
