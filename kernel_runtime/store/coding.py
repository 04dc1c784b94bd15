"""How the bytes of a blob are written into its file.

A blob's name is the hash of its plain bytes, so how it is written can change without its name.
The workspace's blobs are plain: they share blocks with the user's files. Those of namespaces are
compressed where that pays.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

import zstandard

LARGEST: Final = 1 << 30
"""Bytes that a compressed blob may claim to unpack to: a few written bytes cannot fill memory."""

_LEVEL: Final = 1
_PLAIN: Final = b"\0"
_ZSTD: Final = b"\1"
_SAMPLE: Final = 16_384
_SAMPLES: Final = 4
_WORTH: Final = 0.9
"""Above this part of its size a compressed blob is not worth the unpacking."""


class Codec(Protocol):
    """How a BlobStore writes blobs. Stateless for its callers and thread safe."""

    is_plain: bool
    """Whether a file holds its blob's own bytes, so that blocks can be shared."""

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        """The bytes of the file."""

    def decode(self, stored: bytes) -> bytes:
        """The reverse. Raises ValueError where stored was not made by ``encode``."""


class Plain:
    """The blob as it is."""

    is_plain = True

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        return data

    def decode(self, stored: bytes) -> bytes:
        return stored


class Compressed:
    """zstd, or the plain bytes where that does not shrink them; the first byte says which."""

    is_plain = False

    def __init__(self) -> None:
        self._own = threading.local()  # a compressor serves one thread at a time

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        if _looks_dense(self._compressor(), data):
            return b"".join((_PLAIN, data))
        packed = self._compressor().compress(data)
        if len(packed) > len(data) * _WORTH:
            return b"".join((_PLAIN, data))
        return b"".join((_ZSTD, packed))

    def decode(self, stored: bytes) -> bytes:
        kind, rest = stored[:1], memoryview(stored)[1:]
        if kind == _PLAIN:
            return bytes(rest)
        if kind != _ZSTD:
            raise ValueError("not a blob of this version")
        try:
            # The frame says the size, which decides how much memory is taken.
            if not 0 <= zstandard.frame_content_size(rest) <= LARGEST:
                raise ValueError("a compressed blob of no or of an absurd size")
            return zstandard.ZstdDecompressor().decompress(rest, allow_extra_data=False)
        except zstandard.ZstdError as cause:
            raise ValueError(str(cause)) from cause

    def _compressor(self) -> zstandard.ZstdCompressor:
        found: zstandard.ZstdCompressor | None = getattr(self._own, "compressor", None)
        if found is None:
            found = self._own.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        return found


def _looks_dense(compressor: zstandard.ZstdCompressor, data: bytes | memoryview) -> bool:
    """Whether pieces from all over do not shrink: then the whole is not tried."""
    if len(data) <= 2 * _SAMPLE * _SAMPLES:
        return False
    step = (len(data) - _SAMPLE) // (_SAMPLES - 1)
    pieces = b"".join(data[at * step : at * step + _SAMPLE] for at in range(_SAMPLES))
    return len(compressor.compress(pieces)) > len(pieces) * _WORTH
