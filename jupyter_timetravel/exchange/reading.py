"""An export, unpacked into a directory of its own with nothing of it trusted.

Nothing is unpickled, no link is followed, nothing is written outside of that directory, and what is
read stops at what the file has declared. `unpack` gives what `taking` then puts into the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from jupyter_timetravel.exchange import manifest
from jupyter_timetravel.exchange.errors import ImportRefused
from jupyter_timetravel.exchange.layers import LayerMaker, write_sparse
from jupyter_timetravel.exchange.manifest import Contents, NoManifest
from jupyter_timetravel.exchange.members import BadMember, Member, Reader, Source
from jupyter_timetravel.meter import Meter
from kernel_runtime.engines.overlay.markers import Markers
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys, NotAuthentic
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline.text import size_text

RATIO: Final = 200
"""How many times its own size a file may unpack to, beyond `ALLOWANCE`."""

ALLOWANCE: Final = 256 << 20
_LARGEST_BLOB: Final = 1 << 30
_LARGEST_SIGNATURE: Final = 4096
_MOST_MEMBERS: Final = 5_000_000
_WINDOW: Final = 128 << 20
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
SPARE: Final = 64 << 20
"""Bytes of the disk that an import leaves free."""


@dataclass
class Unpacked:
    """What was in a file. Below `top`: blobs/, held/, namespaces/ (a NamespaceStore), layers/."""

    top: Path
    contents: Contents
    signed_here: bool
    """Whether this user's key signed all of it."""
    blobs: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    layers: set[str] = field(default_factory=set)

    def store_of_namespaces(self) -> NamespaceStore:
        """Where the namespaces lie, trusted by nobody."""
        return NamespaceStore(self.top)

    def place_images(self) -> None:
        """Put process images into the store; a file has none."""

    def blob(self, digest: str) -> bytes:
        """The bytes of one, whose name was checked when it was read. Raises OSError."""
        return (self.top / "blobs" / digest).read_bytes()


def unpack(
    file: Path,
    top: Path,
    markers: Markers,
    *,
    any_ratio: bool = False,
    meter: Meter | None = None,
) -> Unpacked:
    """Unpack a file below top, which must be empty. Raises ImportRefused, OSError.

    any_ratio: however much it unpacks to, as long as there is room. meter: counts its bytes.
    """
    name = str(file)
    try:
        with open(file, "rb") as source:
            compressed = os.fstat(source.fileno()).st_size
            most = (1 << 62) if any_ratio else RATIO * compressed + ALLOWANCE
            unpacking = _Unpacking(top, markers, most, meter or Meter())
            return unpacking.run(Reader(_plain(source)))
    except BadMember as error:
        raise ImportRefused(name, str(error), error.name) from error
    except NoManifest as error:
        raise ImportRefused(name, str(error), manifest.NAME) from error
    except NotAuthentic as error:
        raise ImportRefused(name, "it was altered after it was signed with your key") from error
    except zstandard.ZstdError as error:
        raise ImportRefused(name, f"it is damaged ({error})") from error
    except (OSError, StoreError) as error:
        raise ImportRefused(name, str(error)) from error


class _Unpacking:
    def __init__(self, top: Path, markers: Markers, most: int, meter: Meter) -> None:
        self._top, self._most, self._meter = top, most, meter
        self._seen: set[str] = set()
        self._total = 0
        for part in ("blobs", "held", "layers"):
            (top / part).mkdir(mode=0o700)
        self._namespaces = NamespaceStore(top)
        self._maker = LayerMaker(top / "layers", markers)

    def run(self, reader: Reader) -> Unpacked:
        members = reader.members()
        first = next(members, None)
        if first is None or first.name != manifest.NAME or first.kind != "file":
            raise BadMember(first.name if first else "", "it does not begin as an export does")
        contents = manifest.read(reader.whole(first, manifest.LARGEST))
        self._check_room(contents)
        self._meter.begin("unpacking", contents.total)
        unpacked = Unpacked(self._top, contents, False)
        signature = None
        for member in members:
            if signature is not None:
                raise BadMember(member.name, "it comes after the end")
            digest = reader.digest()
            if member.name == manifest.SIGNATURE:
                signature = reader.whole(member, _LARGEST_SIGNATURE)
                unpacked.signed_here = is_ours(_text_of(signature), manifest.PURPOSE, digest)
            else:
                self._take(unpacked, member, reader)
                self._meter.advance(member.size)
        if signature is None:
            raise BadMember("", "it ends too early")
        if (self._total, len(self._seen)) != (contents.total, contents.members):
            raise BadMember("", "it holds less than it says")
        self._maker.finish()
        unpacked.layers = self._maker.layers
        return unpacked

    def _check_room(self, contents: Contents) -> None:
        found = os.statvfs(self._top)
        free = found.f_bavail * found.f_frsize - SPARE
        if contents.total > free:
            room = size_text(max(0, free))
            raise BadMember("", f"it unpacks to {size_text(contents.total)}, and {room} are free")
        if contents.total > self._most:
            raise BadMember(
                "",
                f"it unpacks to {size_text(contents.total)}, more than {RATIO} times its size; if "
                "you know what it is, --any-size takes it",
            )
        if contents.members > _MOST_MEMBERS:
            raise BadMember("", f"it has {contents.members:,} members")

    def _take(self, unpacked: Unpacked, member: Member, reader: Reader) -> None:
        name = member.name
        parts = checked_parts(member, self._seen)
        self._total += member.size
        limits = unpacked.contents
        if self._total > limits.total or len(self._seen) > limits.members:
            raise BadMember(name, "the file holds more than it says")
        if parts[0] == "layers" and len(parts) > 1:
            try:
                self._maker.make(member, parts[1:], reader.content(member))
            except FileExistsError as error:
                raise BadMember(name, "it is there twice") from error
            return
        self._take_content(unpacked, member, parts, reader)

    def _take_content(
        self, unpacked: Unpacked, member: Member, parts: list[str], reader: Reader
    ) -> None:
        places = {"blobs": unpacked.blobs, "held": unpacked.held, "namespaces": unpacked.namespaces}
        is_hash = len(parts) == 2 and len(parts[1]) == 64 and not parts[1].strip("0123456789abcdef")
        if parts[0] not in places or not is_hash:
            raise BadMember(member.name, "no export has a member of that name")
        if member.kind != "file":
            raise BadMember(member.name, f"it is a {member.kind} where content belongs")
        path = self._top / parts[0] / parts[1]
        if parts[0] == "held":
            _write(path, reader.content(member))
        else:
            data = reader.whole(member, _LARGEST_BLOB)
            if digest_of(data) != parts[1]:
                raise BadMember(member.name, "its content does not have the hash that is its name")
            if parts[0] == "blobs":
                _write(path, iter([data]))
            else:
                self._namespaces.put(parts[1], data)
        places[parts[0]].add(parts[1])


def checked_parts(member: Member, seen: set[str]) -> list[str]:
    """The parts of a name that may be one, and is new. Raises BadMember."""
    name = member.name
    if name in seen:
        raise BadMember(name, "it is there twice")
    seen.add(name)
    parts = name.split("/")
    if name.startswith("/"):
        raise BadMember(name, "its name is an absolute path")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BadMember(name, "its name leads out of where it belongs")
    return parts


def _write(path: Path, content: Iterator[bytes]) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        write_sparse(fd, content)
    finally:
        os.close(fd)


def _text_of(data: bytes) -> str:
    try:
        signature = json.loads(data)["signature"]
        if not isinstance(signature, str):
            raise TypeError("it is no text")
    except (ValueError, KeyError, TypeError) as error:
        raise BadMember(manifest.SIGNATURE, f"it is no signature ({error!r:.100})") from error
    return signature


def is_ours(signature: str, purpose: str, signed: bytes) -> bool:
    """Whether this user's key signed it. Raises NotAuthentic where it says so and did not."""
    if not signature.startswith(f"{Keys().id}:"):
        return False
    Keys().check(purpose, signed, signature, "It")
    return True


def _plain(source: BinaryIO) -> Source:
    """The tar file inside, compressed or not."""
    magic = source.read(len(_ZSTD))
    source.seek(0)
    if magic != _ZSTD:
        return source
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    reader: Source = decompressor.stream_reader(source, closefd=False)
    return reader
