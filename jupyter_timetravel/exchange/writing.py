"""A timeline, or one checkpoint of it, into one file."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import zstandard

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.exchange.errors import ExportRefused
from jupyter_timetravel.exchange.gathering import Gathered
from jupyter_timetravel.exchange.members import PIECE, Member, Writer
from jupyter_timetravel.meter import Meter
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.errors import EnvironmentRefused
from kernel_runtime.store.blobs import Digest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.text import one_line

_LEVEL = 3


class Exporter:
    """One export. Reads only; a kernel may be at work on the timeline."""

    def __init__(
        self,
        session: Session,
        checkpoints: Iterable[Checkpoint],
        *,
        environment: bool = True,
        meter: Meter | None = None,
    ) -> None:
        """environment: with the layers. meter: counts the bytes that are written.

        Raises ExportRefused where something needed is gone.
        """
        self._session = session
        self._meter = meter or Meter()
        try:
            self._gathered = Gathered(session, checkpoints, environment=environment)
        except (StoreError, EnvironmentRefused, OSError) as error:
            raise _refused(session, str(error)) from error

    def _content_of(self, digest: Digest) -> tuple[Member, Iterator[bytes]]:
        blobs = self._gathered.blobs
        held = self._gathered.held_path(digest)
        if held is None:
            return Member(f"blobs/{digest}", size=blobs.size(digest) or 0), map(blobs.get, [digest])
        return Member(f"held/{digest}", size=held.stat().st_size), pieces_of(held)

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
        except (StoreError, OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise _refused(self._session, str(error)) from error
        return target.stat().st_size

    def _write_members(self, writer: Writer) -> None:
        gathered = self._gathered
        contents = [self._content_of(digest) for digest in gathered.contents]
        sizes = [member.size for member, _ in contents]
        names = [(name, len(gathered.namespaces.get(name))) for name in gathered.names]
        sizes += [size for _, size in names]
        sizes += [entry.member.size for entry in gathered.layer_entries()]
        key, info = Keys(), self._session.info
        listing = manifest.write(
            self._session.timeline,
            gathered.checkpoints,
            key=key.id,
            notebook=os.path.basename(self._session.notebook),
            kernel_name=info.kernel_name,
            total=sum(sizes),
            members=len(sizes),
        )
        self._meter.begin("writing", sum(sizes))
        writer.add(Member(manifest.NAME, size=len(listing)), [listing])
        for member, content in contents:
            writer.add(member, self._metered(content))
        for name, size in names:
            data = [gathered.namespaces.get(name)]
            writer.add(Member(f"namespaces/{name}", size=size), self._metered(data))
        for entry in gathered.layer_entries():
            writer.add(entry.member, self._metered(entry.content()))
        signed = key.sign(manifest.PURPOSE, writer.digest())
        text = json.dumps({"signature": signed}).encode("ascii")
        writer.add(Member(manifest.SIGNATURE, size=len(text)), [text])
        writer.finish()

    def _metered(self, content: Iterable[bytes]) -> Iterator[bytes]:
        for piece in content:
            yield piece
            self._meter.advance(len(piece))


def pieces_of(path: Path) -> Iterator[bytes]:
    """The content of a file, bit by bit. Raises OSError."""
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _refused(session: Session, why: str) -> ExportRefused:
    return ExportRefused(
        f"{one_line(session.notebook, 200)} was not exported: {why} No file was written, and the "
        "timeline is as it was. Leave the checkpoint out that needs it, or try again when no "
        "kernel runs on it; --no-environment leaves out what is outside of the workspace."
    )
