"""Looks for bytes in all that lies below a directory, also where they are compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zstandard

ZSTD, ZLIB = b"\x28\xb5\x2f\xfd", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def found_in(top: Path, *wanted: bytes) -> list[str]:
    """The files, below top, whose name or content tells one of these."""
    found = []
    for file in sorted(top.rglob("*")):
        texts = [str(file.relative_to(top)).encode()]
        if file.is_file():
            texts += _views(file.read_bytes())
        if any(one in text for one in wanted for text in texts):
            found.append(str(file.relative_to(top)))
    return found


def _views(data: bytes) -> Iterator[bytes]:
    yield data
    for at in _places(data, ZSTD):
        reader = zstandard.ZstdDecompressor().decompressobj()
        with suppress(zstandard.ZstdError):
            yield reader.decompress(data[at:])
    for magic in ZLIB:
        for at in _places(data, magic):
            with suppress(zlib.error):
                yield zlib.decompressobj().decompress(data[at:])


def _places(data: bytes, magic: bytes) -> Iterator[int]:
    at = data.find(magic)
    while at >= 0:
        yield at
        at = data.find(magic, at + 1)
