"""Content from a remote into the store: only what is missing, some at a time, each verified.

What is fetched goes where it belongs at once. No timeline names it yet, so a pull that is cut short
leaves what the next one finds, and what a sweep removes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

from jupyter_timetravel.exchange.reading import SPARE
from jupyter_timetravel.remote.bucket import Bucket, Gone, in_parallel
from jupyter_timetravel.remote.layout import BadObject, Coder
from jupyter_timetravel.remote.progress import Progress
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.digests import BlobError, Digest
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline.text import size_text


class Missing(Exception):
    """Something that is needed is not in the remote, or is not what was sent."""

    def __init__(self, digest: str, cause: str) -> None:
        super().__init__(cause)
        self.digest, self.cause = digest, cause


class Source:
    """The content of one list, read from its remote. Thread safe."""

    def __init__(
        self, bucket: Bucket, coder: Coder, sizes: Mapping[str, int], progress: Progress
    ) -> None:
        """sizes: bytes of all content that the list has."""
        self._bucket, self._coder, self._sizes = bucket, coder, sizes
        self._progress = progress

    def size(self, digest: str) -> int:
        """The bytes that one has, as its list says; 0 for one that it does not have."""
        return self._sizes.get(digest, 0)

    def read(self, digest: str) -> bytes:
        """The bytes of one, verified. Raises Missing, RemoteUnreachable."""
        if digest not in self._sizes:
            raise Missing(digest, "the list does not have it")
        try:
            stored = self._bucket.get(self._coder.name(digest))
            data = self._coder.decode(digest, stored, self._sizes[digest])
        except Gone as error:
            raise Missing(digest, "it is not there") from error
        except BadObject as error:
            raise Missing(digest, str(error)) from error
        self._progress.travelled(len(stored))
        return data


class NoRoom(Exception):
    """The store's disk has no room for what is to be fetched."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"it needs {size_text(needed)}, and {size_text(max(0, free))} are free")


class Fetcher:
    """Brings what is missing into a store. Thread safe."""

    def __init__(
        self, source: Source, blobs: BlobStore, namespaces: NamespaceStore, progress: Progress
    ) -> None:
        self._source = source
        self._blobs, self._namespaces = blobs, namespaces
        self._progress = progress
        self._lock = threading.Lock()
        self.missing: dict[str, str] = {}
        """What could not be had, and why."""
        self.fresh: set[Digest] = set()
        """Blobs that were not in the store before."""

    def blob(self, digest: str) -> bytes:
        """The bytes of one that the store is to have: what it has, or fetched again.

        Raises Missing, RemoteUnreachable.
        """
        try:
            return self._blobs.get(Digest(digest))
        except BlobError:
            return self._source.read(digest)

    def blobs(self, digests: Iterable[str]) -> None:
        """Into the store's content; `missing` tells what is not there then. Raises NoRoom."""
        wanted = set(digests)
        self.check_room(one for one in wanted if not self._blobs.has(Digest(one)))
        self._all(wanted, self._one_blob)

    def namespaces(self, digests: Iterable[str]) -> None:
        """Into the store's namespaces, within its ``writing``. Raises NoRoom."""
        wanted = set(digests)
        lacking = self._namespaces.missing(wanted)
        self.check_room(lacking)
        for _ in range(len(wanted) - len(lacking)):
            self._progress.there()
            self._progress.advance()
        self._all(lacking, lambda digest: self._namespaces.put(digest, self._source.read(digest)))

    def check_room(self, digests: Iterable[str]) -> None:
        """See that the disk has room for these. Raises NoRoom."""
        needed = sum(self._source.size(digest) for digest in digests)
        found = os.statvfs(self._blobs.path)
        free = found.f_bavail * found.f_frsize - SPARE
        if needed > free:
            raise NoRoom(needed, free)

    def _one_blob(self, digest: str) -> None:
        if self._blobs.touch(Digest(digest)):
            self._progress.there()
            return
        self._blobs.put(self._source.read(digest))
        with self._lock:
            self.fresh.add(Digest(digest))

    def _all(self, digests: Iterable[str], one: Callable[[str], None]) -> None:
        def noted(digest: str) -> None:
            try:
                one(digest)
            except Missing as error:
                with self._lock:
                    self.missing[error.digest] = error.cause
            self._progress.advance()

        in_parallel(noted, sorted(set(digests) - self.missing.keys()))
