"""Sending a timeline: content, then the list, then the ref. Cut short anywhere, there is waste."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.exchange.gathering import Gathered
from jupyter_timetravel.exchange.layers import LayerEntry
from jupyter_timetravel.exchange.members import END, Writer
from jupyter_timetravel.exchange.writing import pieces_of
from jupyter_timetravel.meter import Meter
from jupyter_timetravel.offline.stored import Session
from jupyter_timetravel.remote import layout, listing, pruning, published
from jupyter_timetravel.remote.bucket import PARALLEL, Bucket, Entry, Gone
from jupyter_timetravel.remote.errors import PushRefused
from jupyter_timetravel.remote.journal import Journal
from jupyter_timetravel.remote.layout import PIECE, BadObject, Coder, Ref
from jupyter_timetravel.remote.listing import Listing, Pieces
from jupyter_timetravel.remote.progress import Progress
from jupyter_timetravel.remote.sealing import Seal
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.image_moving import files_of
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.keys import Keys
from kernel_runtime.timeline import Checkpoint

Load = Callable[[], bytes]

_TRIES = 3
"""Pushes of which a deletion beside them takes something."""


@dataclass(frozen=True)
class Pushed:
    """What came of a push. checkpoints: how many the remote has now. is_new: or had it all."""

    checkpoints: int
    is_new: bool


class Sender:
    """Puts content into a remote, once each, some at a time."""

    def __init__(self, bucket: Bucket, coder: Coder, journal: Journal, progress: Progress) -> None:
        """Reads what is there. Raises RemoteUnreachable."""
        self._bucket, self._coder, self._journal = bucket, coder, journal
        self._progress = progress
        self._there = {entry.name: entry for entry in bucket.list(layout.OBJECTS)}
        self._offered: set[str] = set()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="push")
        self._room = threading.BoundedSemaphore(2 * PARALLEL)
        self._failed: BaseException | None = None

    def offer(self, digest: str, load: Load) -> None:
        """See that content is there. Raises what sending something before it has raised."""
        if self._failed is not None:
            raise self._failed
        if digest in self._offered:
            return
        self._offered.add(digest)
        self._room.acquire()
        future = self._pool.submit(self._send, digest, load)
        future.add_done_callback(self._done)

    def _done(self, future: Future[None]) -> None:
        self._room.release()
        # after a failure those that wait are cancelled
        error = None if future.cancelled() else future.exception()
        if error is not None and self._failed is None:
            self._failed = error

    def _send(self, digest: str, load: Load) -> None:
        name = self._coder.name(digest)
        entry = self._there.get(name)
        if self._failed is not None or (entry is not None and self._is_good(digest, entry)):
            return
        stored = self._coder.encode(digest, load())
        self._journal.note(name, len(stored), self._bucket.put(name, stored))
        self._progress.travelled(len(stored))

    def _is_good(self, digest: str, entry: Entry) -> bool:
        if not self._journal.has(entry):
            try:
                stored = self._bucket.get(entry.name)
                self._coder.decode(digest, stored)
            except (Gone, BadObject):
                return False  # put again, it heals
            self._journal.note(entry.name, len(stored), entry.mark)
        self._progress.there()
        return True

    def has_all(self, digests: Iterable[str]) -> bool:
        """Whether these are there, as far as their marks tell: nothing is read."""
        entries = [self._there.get(self._coder.name(digest)) for digest in digests]
        return all(entry is not None and self._journal.has(entry) for entry in entries)

    def finish(self) -> None:
        """Wait until all of it is there. Raises what sending has raised."""
        self._pool.shutdown(wait=True)
        if self._failed is not None:
            raise self._failed
        self._journal.shorten({self._coder.name(one) for one in self._offered} | {*self._there})

    def stop(self) -> None:
        """Give up, once what is under way is done."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Push:
    """One timeline on its way to one remote. A kernel may be at work on it."""

    def __init__(self, session: Session, bucket: Bucket, seal: Seal | None, progress: Progress):
        self._session, self._bucket, self._seal = session, bucket, seal
        self._progress = progress
        self._coder = Coder(seal.cipher if seal is not None else None)
        self._keys = Keys()

    def run(
        self, checkpoints: Collection[Checkpoint], *, environment: bool = True, images: bool = False
    ) -> Pushed:
        """Send these, beside those that are there. images: exact processes, memory and all.

        Raises PushRefused, RemoteUnreachable, RemoteDamaged, StoreError: nothing is published then.
        """
        for _ in range(_TRIES):
            pushed, named = self._run(checkpoints, environment=environment, images=images)
            if not pruning.taken(self._bucket, named, self._session.info.id):
                return pushed
        raise PushRefused(
            self._session.notebook, "somebody deletes there again and again.", "Then push again."
        )

    def _run(
        self, checkpoints: Collection[Checkpoint], *, environment: bool, images: bool
    ) -> tuple[Pushed, set[str]]:
        """Returns what came of it, and the names of all objects that it relies on."""
        session = self._session
        journal = None
        sender = None
        try:
            if self._seal is not None:
                self._bucket.put(self._seal.name, self._seal.header)
            journal = Journal(session.store.directory, self._bucket.url)
            sender = Sender(self._bucket, self._coder, journal, self._progress)
            refs, older = self._older()
            moved = self._images_of(checkpoints) if images else {}
            gathered = Gathered(session, checkpoints, environment=environment, images=moved)
            found = listing.of_timeline(
                session.timeline,
                gathered.checkpoints,
                older,
                key=self._keys.id,
                notebook=os.path.basename(session.notebook),
                kernel_name=session.info.kernel_name,
            )
            _Sending(gathered, sender, found, older, self._progress).run(moved)
            if older is not None and len(refs) == 1 and found.says_the_same(older):
                sender.finish()
                return Pushed(len(found.rows), False), self._names(found, refs[0].list)
            text = found.as_bytes()
            name = digest_of(text)
            sender.offer(name, lambda: text)
            sender.finish()
            self._publish(found, name, len(text), refs)
            return Pushed(len(found.rows), True), self._names(found, name)
        except (StoreError, EnvironmentRefused, OSError, ValueError) as error:
            raise PushRefused(session.notebook, str(error), _MEND) from error
        finally:
            if sender is not None:
                sender.stop()
            if journal is not None:
                journal.close()

    def _names(self, found: Listing, name: str) -> set[str]:
        return {self._coder.name(digest) for digest in (*found.objects, name)}

    def _older(self) -> tuple[list[Ref], Listing | None]:
        """What this user has published of this timeline with the same seal."""
        seals = [] if self._seal is None else [self._seal]
        found, _, _ = published.refs(self._bucket, seals, self._session.info.id)
        sealed = None if self._seal is None else self._seal.id
        ours = [ref for ref in found if ref.is_ours and ref.sealed == sealed]
        lists = []
        for ref in ours:
            # nobody can read what a damaged one names; so this push takes its place
            with contextlib.suppress(published.RemoteDamaged):
                lists.append(published.read_list(self._bucket, self._coder, ref))
        return ours, listing.merged(lists)

    def _images_of(self, checkpoints: Iterable[Checkpoint]) -> dict[str, dict[str, Path]]:
        if self._seal is not None:
            raise PushRefused(
                self._session.notebook,
                "processes are sealed for this store alone, which is encrypted.",
                "Push without --images: the variables are enough to go on.",
            )
        store = ImageStore(self._session.store.directory)
        return {
            c.ref: files_of(store, c.ref)
            for one in checkpoints
            for c in one.captures
            if c.engine == manifest.IMAGE and c.state == "ready" and c.ref
        }

    def _publish(self, found: Listing, digest: str, size: int, merged: Iterable[Ref]) -> None:
        self._bucket.settle()
        name = layout.new_ref_name(self._session.info.id)
        told = {
            "notebook": found.value["notebook"],
            "kernel_name": found.value["kernel_name"],
            "pushed_at": datetime.now(timezone.utc).isoformat(),
            "checkpoints": len(found.rows),
            "bytes": sum(found.objects.values()),
            "list": digest,
            "list_bytes": size,
        }
        cipher, sealed = (self._seal.cipher, self._seal.id) if self._seal else (None, None)
        self._bucket.put(name, layout.write_ref(name, told, self._keys, cipher, sealed))
        self._bucket.settle()
        self._bucket.delete([ref.name for ref in merged])


_MEND = (
    "Leave the checkpoint out that needs it, or try again when no kernel runs on it; "
    "--no-environment leaves out what is outside of the workspace."
)


class _Sending:
    """Offers all content of some checkpoints, and writes down where it lies."""

    def __init__(
        self,
        gathered: Gathered,
        sender: Sender,
        found: Listing,
        older: Listing | None,
        meter: Meter,
    ) -> None:
        self._gathered, self._sender, self._meter = gathered, sender, meter
        self._found, self._older = found, older

    def run(self, images: Mapping[str, Mapping[str, Path]]) -> None:
        gathered = self._gathered
        parts = len(gathered.contents) + len(gathered.names) + len(gathered.layers) + len(images)
        self._meter.begin("sending", parts, "pieces")
        for digest in gathered.contents:
            held = gathered.held_path(digest)
            if held is None:
                self._one(
                    digest, gathered.blobs.size(digest) or 0, partial(gathered.blobs.get, digest)
                )
            else:
                self._found.held[digest] = self._pieces(pieces_of(held))
            self._meter.advance()
        for name in gathered.names:
            known = self._older.objects.get(name) if self._older is not None else None
            size = len(gathered.namespaces.get(name)) if known is None else known
            self._one(name, size, partial(gathered.namespaces.get, name))
            self._meter.advance()
        for layer in gathered.layers:
            self._found.layers[layer] = self._layer(layer)
            self._meter.advance()
        for image, files in images.items():
            self._found.images[image] = {
                name: self._pieces(pieces_of(path)) for name, path in files.items()
            }
            self._meter.advance()

    def _layer(self, layer: str) -> Pieces:
        """A layer never changes: one that was sent before is not read again."""
        known = self._older.layers.get(layer) if self._older is not None else None
        if known is not None and self._sender.has_all(digest for digest, _ in known):
            for digest, size in known:
                self._found.objects[digest] = size
            return known
        return self._pieces(as_tar(self._gathered.layer_entries([layer])))

    def _one(self, digest: str, size: int, load: Load) -> None:
        self._found.objects[digest] = size
        self._sender.offer(digest, load)

    def _pieces(self, content: Iterable[bytes]) -> Pieces:
        pieces: Pieces = []
        for data in cut(content):
            digest = digest_of(data)
            pieces.append((digest, len(data)))
            self._one(digest, len(data), partial(bytes, data))
        return pieces


def as_tar(entries: Iterable[LayerEntry]) -> Iterator[bytes]:
    """A layer as a tar file, bit by bit. Raises OSError, ValueError."""
    writer = Writer(io.BytesIO())
    for entry in entries:
        yield from writer.parts(entry.member, entry.content())
    yield END


def cut(content: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, in pieces of PIECE bytes and a rest."""
    rest = bytearray()
    for data in content:
        rest += data
        while len(rest) >= PIECE:
            yield bytes(rest[:PIECE])
            del rest[:PIECE]
    if rest:
        yield bytes(rest)
