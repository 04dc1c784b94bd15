"""A timeline, or one checkpoint of it, into one file."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import zstandard

from jupyter_timetravel.exchange import layers, manifest
from jupyter_timetravel.exchange.errors import ExportRefused
from jupyter_timetravel.exchange.layers import LayerEntry
from jupyter_timetravel.exchange.members import PIECE, BadMember, Member, Writer
from jupyter_timetravel.offline.environment import StoredEnvironment, overlay_of
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.engines.workspace.snapshots import reachable
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.blobs import BlobStore, Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.text import one_line

_LEVEL = 3


class Exporter:
    """One export. Reads only; a kernel may be at work on the timeline."""

    def __init__(
        self, session: Session, checkpoints: Iterable[Checkpoint], *, environment: bool = True
    ) -> None:
        """environment: with the layers. Raises ExportRefused where something needed is gone."""
        self._session = session
        self._with_environment = environment
        self._blobs = BlobStore(session.store.directory)
        self._namespaces = NamespaceStore(session.store.directory)
        self._environment: StoredEnvironment | None = None
        try:
            self._checkpoints = [self._as_written(one) for one in checkpoints]
            self._layers = sorted({x for one in self._checkpoints for x in manifest.layers_of(one)})
            self._snapshots = self._needed_blobs()
            self._names = self._needed_namespaces()
        except (StoreError, EnvironmentRefused, OSError) as error:
            raise _refused(session, str(error)) from error

    def _as_written(self, checkpoint: Checkpoint) -> Checkpoint:
        captures = manifest.kept(checkpoint.captures)
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
            for one in self._checkpoints
            for c in one.captures
            if c.kind == kind and c.engine != "overlay" and c.state == "ready" and c.ref
        ]

    def _needed_blobs(self) -> list[Digest]:
        found, unread = reachable(self._blobs, self._refs("filesystem"))
        if unread:
            raise _refused(self._session, unread[0][1])
        return [Digest(digest) for digest in sorted(found)]

    def _content_of(self, digest: Digest) -> tuple[Member, Iterator[bytes]]:
        size = self._blobs.size(digest)
        if size is not None:
            return Member(f"blobs/{digest}", size=size), map(self._blobs.get, [digest])
        held = self._blobs.held_path(digest)
        return Member(f"held/{digest}", size=held.stat().st_size), _pieces(held)

    def _needed_namespaces(self) -> list[str]:
        found: set[str] = set()
        for ref in self._refs("namespace"):
            found |= {ref, *self._namespaces.needs(ref)}
        return sorted(found)

    def write(self, target: Path) -> int:
        """Write the file, which appears whole or not at all; returns its size in bytes.

        An existing file of that name is replaced. Raises ExportRefused.
        """
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
        try:
            with ExitStack() as stack:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                file = stack.enter_context(open(os.open(temporary, flags, 0o600), "wb"))
                compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
                with compressor.stream_writer(file, closefd=False) as out:
                    self._write_members(Writer(out))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except (StoreError, OSError, ValueError, BadMember) as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            what = f"{error.name}: {error}" if isinstance(error, BadMember) else str(error)
            raise _refused(self._session, what) from error
        return target.stat().st_size

    def _write_members(self, writer: Writer) -> None:
        contents = [self._content_of(digest) for digest in self._snapshots]
        sizes = [member.size for member, _ in contents]
        names = [(name, len(self._namespaces.get(name))) for name in self._names]
        sizes += [size for _, size in names]
        sizes += [entry.member.size for entry in self._layer_entries()]
        key, info = Keys(), self._session.info
        listing = manifest.write(
            self._session.timeline,
            self._checkpoints,
            key=key.id,
            notebook=os.path.basename(self._session.notebook),
            kernel_name=info.kernel_name,
            total=sum(sizes),
            members=len(sizes),
        )
        writer.add(Member(manifest.NAME, size=len(listing)), [listing])
        for member, content in contents:
            writer.add(member, content)
        for name, size in names:
            writer.add(Member(f"namespaces/{name}", size=size), [self._namespaces.get(name)])
        for entry in self._layer_entries():
            writer.add(entry.member, entry.content())
        signed = key.sign(manifest.PURPOSE, writer.digest())
        text = json.dumps({"signature": signed}).encode("ascii")
        writer.add(Member(manifest.SIGNATURE, size=len(text)), [text])
        writer.finish()

    def _layer_entries(self) -> Iterator[LayerEntry]:
        environment = self._environment
        for layer in self._layers if environment is not None else ():
            assert environment is not None
            top = environment.directory.files(layer)
            yield from layers.entries(top, f"layers/{layer}", environment.markers)


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _refused(session: Session, why: str) -> ExportRefused:
    return ExportRefused(
        f"{one_line(session.notebook, 200)} was not exported: {why} No file was written, and the "
        "timeline is as it was. Leave the checkpoint out that needs it, or try again when no "
        "kernel runs on it; --no-environment leaves out what is outside of the workspace."
    )
