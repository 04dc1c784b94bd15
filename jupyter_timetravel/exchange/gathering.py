"""What checkpoints need of the store, found before any of it is sent anywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from jupyter_timetravel.exchange import layers, manifest
from jupyter_timetravel.exchange.layers import LayerEntry
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.engines.workspace.snapshots import reachable
from kernel_runtime.store.blobs import BlobStore, Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Checkpoint


class Gathered:
    """Checkpoints as they are sent, and the names of all that they need. Reads only."""

    def __init__(
        self,
        session: Session,
        checkpoints: Iterable[Checkpoint],
        *,
        environment: bool = True,
        images: Collection[str] = (),
    ) -> None:
        """environment: with the layers. images: refs of process images that are sent too.

        Raises StoreError, EnvironmentRefused, OSError where something needed is gone.
        """
        self._session = session
        self._with_environment = environment
        self._images = images
        self.blobs = BlobStore(session.store.directory)
        self.namespaces = NamespaceStore(session.store.directory)
        self._environment: StoredEnvironment | None = None
        self.checkpoints = [self._as_sent(one) for one in checkpoints]
        self.layers = sorted({x for one in self.checkpoints for x in manifest.layers_of(one)})
        self.contents = self._needed_blobs()
        """Of the workspace: blobs, and names of held files."""
        self.names = self._needed_namespaces()

    def _as_sent(self, checkpoint: Checkpoint) -> Checkpoint:
        captures = manifest.kept(checkpoint.captures, self._images)
        if not self._with_environment:
            captures = [
                replace(c, state="evicted", error="left out of the file", details={})
                if c.engine == "overlay"
                else c
                for c in captures
            ]
            return replace(checkpoint, captures=tuple(captures))
        overlay = overlay_of(checkpoint)
        if overlay is not None:
            if self._environment is None:
                self._environment = StoredEnvironment(self._session.environment)
            named = {
                "stacks": self._environment.stacks_of(overlay),  # merged layers by their new names
                "root_layer": str(overlay.details.get("root_layer", "")),
            }
            captures = [
                replace(c, details=named) if c.engine == "overlay" and c.state == "ready" else c
                for c in captures
            ]
        return replace(checkpoint, captures=tuple(captures))

    def _refs(self, kind: str) -> list[str]:
        return [
            c.ref
            for one in self.checkpoints
            for c in one.captures
            if c.kind == kind and c.engine != "overlay" and c.state == "ready" and c.ref
        ]

    def _needed_blobs(self) -> list[Digest]:
        found, unread = reachable(self.blobs, self._refs("filesystem"))
        if unread:
            raise StoreError(unread[0][1])
        return [Digest(digest) for digest in sorted(found)]

    def _needed_namespaces(self) -> list[str]:
        found: set[str] = set()
        for ref in self._refs("namespace"):
            found |= {ref, *self.namespaces.needs(ref)}
        return sorted(found)

    def held_path(self, digest: Digest) -> Path | None:
        """Where a held file lies; None for a blob."""
        return None if self.blobs.size(digest) is not None else self.blobs.held_path(digest)

    def layer_entries(self, chosen: Iterable[str] | None = None) -> Iterator[LayerEntry]:
        """All of the layers (or of these), one after the other. Raises OSError."""
        environment = self._environment
        if environment is None:
            return
        for layer in self.layers if chosen is None else chosen:
            top = environment.directory.files(layer)
            yield from layers.entries(top, f"layers/{layer}", environment.markers)
