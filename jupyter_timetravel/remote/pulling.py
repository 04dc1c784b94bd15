"""Fetching a timeline: all of it or nothing. It enters the store as an import does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from jupyter_timetravel.exchange.errors import ImportRefused
from jupyter_timetravel.exchange.layers import LayerMaker, write_sparse
from jupyter_timetravel.exchange.manifest import Contents
from jupyter_timetravel.exchange.members import BadMember, Reader
from jupyter_timetravel.exchange.reading import Unpacked, checked_parts
from jupyter_timetravel.exchange.taking import staging, take_unpacked
from jupyter_timetravel.remote.bucket import Bucket
from jupyter_timetravel.remote.errors import PullRefused
from jupyter_timetravel.remote.fetching import Fetcher, Missing, NoRoom, Source
from jupyter_timetravel.remote.images import place_all
from jupyter_timetravel.remote.layout import Coder, Ref
from jupyter_timetravel.remote.listing import Listing, Pieces
from jupyter_timetravel.remote.needs import Needs
from jupyter_timetravel.remote.progress import Progress
from kernel_runtime.engines.overlay.markers import TRUSTED, USER
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.store.origins import Origin
from kernel_runtime.timeline import Capture, Checkpoint

_WHOLE: Final = "Push it again from where it came: that mends it."
_PARTIAL: Final = f"{_WHOLE} Or --partial takes what is whole, and says what is not."


@dataclass
class Fetched(Unpacked):
    """What was fetched: content and namespaces in the store, large files and layers below top."""

    fetcher: Fetcher | None = None
    store: Path = Path()
    images: set[str] = field(default_factory=set)

    def store_of_namespaces(self) -> NamespaceStore:
        return NamespaceStore(self.store)

    def blob(self, digest: str) -> bytes:
        assert self.fetcher is not None
        return self.fetcher.blob(digest)

    def place_images(self) -> None:
        place_all(self.store, self.top / "images", self.images)


@dataclass(frozen=True)
class Pulled:
    """What came of a pull. left_out: captures that are not whole, in words."""

    id: str
    contents: Contents
    origin: Origin
    left_out: list[str]


class Pull:
    """One timeline on its way into a store."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        coder: Coder,
        ref: Ref,
        listing: Listing,
        progress: Progress,
    ) -> None:
        self._store, self._ref, self._listing = store, ref, listing
        self._progress = progress
        self._what = f"{ref.notebook} of {bucket.shown}"
        self._blobs = BlobStore(store.directory)
        self._namespaces = NamespaceStore(store.directory)
        source = Source(bucket, coder, listing.objects, progress)
        self._fetcher = Fetcher(source, self._blobs, self._namespaces, progress)
        self._needs = Needs(listing, self._fetcher, self._blobs, self._namespaces)

    def run(self, contents: Contents, *, partial: bool = False) -> Pulled:
        """Fetch and take it in. partial: leave out the captures that are not whole.

        Raises PullRefused, RemoteUnreachable, StoreError: the timelines here are as they were.
        """
        try:
            with self._namespaces.writing(), staging(self._store.directory) as top:
                return self._run(contents, partial, top)
        except ImportRefused as error:
            raise self._refused(error.cause, _WHOLE) from error
        except Missing as error:
            raise self._refused(f"{error.digest[:12]}: {error.cause}", _WHOLE) from error
        except NoRoom as error:
            mend = "Make room, or pull single checkpoints."
            raise self._refused(str(error), mend) from error
        except (BadMember, OSError) as error:
            raise self._refused(str(error), "See that the disk is not full.") from error

    def _run(self, contents: Contents, partial: bool, top: Path) -> Pulled:
        checkpoints = [self._without_images(one) for one in contents.checkpoints]
        self._needs.find(checkpoints)
        needed: dict[tuple[str, int], set[str]] = {
            (one.id, at): self._needs.of(capture, one)
            for one in checkpoints
            for at, capture in enumerate(one.captures)
        }
        if not self._fetcher.missing or partial:
            namespaces = self._namespaces_of(checkpoints)
            everything = {digest for digests in needed.values() for digest in digests}
            self._progress.begin("fetching", len(everything | namespaces), "objects")
            self._fetcher.namespaces(namespaces)
            self._fetcher.blobs(everything - namespaces)
            pieces = self._needs.all_pieces()
            self._fetcher.check_room(everything & pieces)  # once more: files are made of them
        whole, left_out = self._whole(checkpoints, needed)
        if left_out and not partial:
            more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
            raise self._refused(f"{left_out[0]}{more}", _PARTIAL)
        contents = replace(contents, checkpoints=tuple(whole))
        fetched = self._assembled(contents, top)
        markers = TRUSTED if os.geteuid() == 0 else USER
        id, contents, origin = take_unpacked(
            self._store, self._what, fetched, markers.prefix, self._blobs
        )
        self._blobs.discard(self._fetcher.fresh - fetched.blobs)
        return Pulled(id, contents, origin, left_out)

    def _without_images(self, checkpoint: Checkpoint) -> Checkpoint:
        if not self._blobs.is_encrypted:
            return checkpoint
        captures = tuple(
            replace(c, state="evicted", ref=None, error="not kept in an encrypted store")
            if c.kind == "process" and c.state == "ready"
            else c
            for c in checkpoint.captures
        )
        return replace(checkpoint, captures=captures)

    def _whole(
        self, checkpoints: Iterable[Checkpoint], needed: dict[tuple[str, int], set[str]]
    ) -> tuple[list[Checkpoint], list[str]]:
        missing = self._fetcher.missing
        whole, told = [], []
        for one in checkpoints:
            captures: list[Capture] = []
            for at, capture in enumerate(one.captures):
                lost = sorted(needed[one.id, at] & missing.keys())
                if lost:
                    why = f"{lost[0][:12]}: {missing[lost[0]]}"
                    told.append(f"#{one.number}, {_NAMES.get(capture.engine, capture.kind)}: {why}")
                    capture = replace(
                        capture, state="failed", ref=None, details={}, error=f"not pulled: {why}"
                    )
                captures.append(capture)
            whole.append(replace(one, captures=tuple(captures)))
        return whole, told

    def _namespaces_of(self, checkpoints: Iterable[Checkpoint]) -> set[str]:
        return {
            digest
            for one in checkpoints
            for c in one.captures
            if c.kind == "namespace" and c.state == "ready" and c.ref
            for digest in self._needs.of_namespace(c.ref)
        }

    def _assembled(self, contents: Contents, top: Path) -> Fetched:
        fetched = Fetched(
            top, contents, self._ref.is_ours, fetcher=self._fetcher, store=self._store.directory
        )
        fetched.namespaces = self._namespaces_of(contents.checkpoints)
        for part in ("held", "layers", "images"):
            (top / part).mkdir(mode=0o700)
        names: set[str] = set()
        for one in contents.checkpoints:
            for capture in one.captures:
                if capture.state != "ready" or not capture.ref:
                    continue
                if capture.kind == "filesystem" and capture.engine != "overlay":
                    names |= self._needs.of_workspace(capture.ref)
                elif capture.kind == "process":
                    fetched.images.add(capture.ref)
        fetched.held = names & self._listing.held.keys()
        fetched.blobs = names - fetched.held
        for name in fetched.held:
            self._write(top / "held" / name, self._listing.held[name])
        for ref in sorted(fetched.images):
            for name, pieces in self._listing.images[ref].items():
                target = top / "images" / name
                target.parent.mkdir(mode=0o700, exist_ok=True)
                if not target.exists():
                    self._write(target, pieces)
        maker = LayerMaker(top / "layers", TRUSTED if os.geteuid() == 0 else USER)
        for layer in sorted(contents.needed_layers()):
            self._make_layer(maker, layer)
        maker.finish()
        fetched.layers = maker.layers
        return fetched

    def _content(self, pieces: Pieces) -> Iterator[bytes]:
        for digest, _ in pieces:
            yield self._fetcher.blob(digest)

    def _write(self, path: Path, pieces: Pieces) -> None:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            write_sparse(fd, self._content(pieces))
        finally:
            os.close(fd)

    def _make_layer(self, maker: LayerMaker, layer: str) -> None:
        reader = Reader(_Stream(self._content(self._listing.layers[layer])))
        seen: set[str] = set()
        for member in reader.members():
            parts = checked_parts(member, seen)
            if parts[:2] != ["layers", layer]:
                raise BadMember(member.name, "it belongs to another layer")
            maker.make(member, parts[1:], reader.content(member))

    def _refused(self, cause: str, mend: str) -> PullRefused:
        return PullRefused(self._what, cause, mend)


_NAMES: Final = {
    "workspace": "files of the workspace",
    "kept-aside": "files that were kept aside",
    "overlay": "environment",
    "dill": "variables",
    "image": "process",
}


class _Stream:
    """Pieces as one file that is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; b"" at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(piece)
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)
