"""Which content each capture of a list needs, found while it is fetched."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.remote.fetching import Fetcher
from jupyter_timetravel.remote.listing import Listing, Pieces
from kernel_runtime.engines.workspace.snapshots import left_out_and_trees
from kernel_runtime.engines.workspace.tree import TreeDamaged, references
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.digests import Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Capture, Checkpoint


class Needs:
    """What captures need, by digest. Trees and lists of namespaces are fetched to know it."""

    def __init__(
        self, listing: Listing, fetcher: Fetcher, blobs: BlobStore, namespaces: NamespaceStore
    ) -> None:
        self._listing, self._fetcher = listing, fetcher
        self._blobs, self._namespaces = blobs, namespaces
        self._below: dict[str, tuple[list[str], list[str]]] = {}
        """Of a directory: directories and content."""
        self._of_namespace: dict[str, set[str]] = {}

    def find(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Fetch what is to be read for it. What is not there is in the fetcher's ``missing``."""
        captures = [c for one in checkpoints for c in one.captures if c.state == "ready" and c.ref]
        wave = {c.ref for c in captures if _is_snapshot(c) and c.ref}
        first = True
        while wave:
            self._fetcher.blobs(wave)
            following: set[str] = set()
            for digest in wave - self._fetcher.missing.keys():
                self._below[digest] = self._look(digest, first)
                following |= set(self._below[digest][0])
            wave, first = following - self._below.keys() - self._fetcher.missing.keys(), False
        lists = {c.ref for c in captures if c.kind == "namespace" and c.ref}
        self._fetcher.namespaces(lists)
        for ref in lists - self._fetcher.missing.keys():
            try:
                self._of_namespace[ref] = self._namespaces.needs(ref)
            except StoreError as error:
                self._fetcher.missing[ref] = str(error)

    def _look(self, digest: str, is_snapshot: bool) -> tuple[list[str], list[str]]:
        try:
            if is_snapshot:
                left_out, trees = left_out_and_trees(self._blobs, Digest(digest))
                return trees, left_out
            return references(self._blobs, digest)
        except (StoreError, TreeDamaged, ValueError, KeyError, TypeError, IndexError) as error:
            self._fetcher.missing[digest] = f"it is no list of files ({error!r:.100})"
            return [], []

    def of_workspace(self, ref: str) -> set[str]:
        """All content of a snapshot, itself included: blobs, and names of held files."""
        found, todo = {ref}, [ref]
        while todo:
            trees, contents = self._below.get(todo.pop(), ([], []))
            todo += [tree for tree in trees if tree not in found]
            found |= {*trees, *contents}
        return found

    def of_namespace(self, ref: str) -> set[str]:
        """All content of a namespace, its list included."""
        return {ref, *self._of_namespace.get(ref, ())}

    def pieces_of(self, capture: Capture, checkpoint: Checkpoint) -> set[str]:
        """The pieces of layers, or of a process image. What the list does not have is missing."""
        if capture.engine == "overlay":
            return self._pieces(self._listing.layers, manifest.layers_of(checkpoint))
        files = self._listing.images.get(capture.ref or "", {})
        return {digest for pieces in files.values() for digest, _ in pieces}

    def held(self, names: Iterable[str]) -> set[str]:
        """The pieces of large files."""
        return self._pieces(self._listing.held, names)

    def all_pieces(self) -> set[str]:
        """The pieces of everything that the list cuts into some."""
        listing = self._listing
        files = [*listing.layers.values(), *listing.held.values()]
        for image in listing.images.values():
            files += image.values()
        return {digest for pieces in files for digest, _ in pieces}

    def _pieces(self, table: dict[str, Pieces], names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        for name in names:
            if name in table:
                found |= {digest for digest, _ in table[name]}
            else:
                self._fetcher.missing.setdefault(name, "the list does not have it")
                found.add(name)
        return found

    def of(self, capture: Capture, checkpoint: Checkpoint) -> set[str]:
        """All that must travel for one capture."""
        if capture.state != "ready":
            return set()
        if capture.engine == "overlay" or capture.kind == "process":
            return self.pieces_of(capture, checkpoint)
        if not capture.ref:
            return set()
        if capture.kind == "namespace":
            return self.of_namespace(capture.ref)
        contents = self.of_workspace(capture.ref)
        large = contents & self._listing.held.keys()
        return (contents - large) | self.held(large)


def _is_snapshot(capture: Capture) -> bool:
    return capture.kind == "filesystem" and capture.engine != "overlay"
