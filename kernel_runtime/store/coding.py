"""How the bytes of a blob are written into its file.

A blob's name is the hash of its plain bytes, so how it is written can change without its name.
The workspace's blobs are plain: they share blocks with the user's files. Those of namespaces are
compressed where that pays, and written as a delta to an older version (deltas.py) where that pays
more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import zstandard

from kernel_runtime.store import deltas
from kernel_runtime.store.digests import Digest

LARGEST: Final = 1 << 30
"""Bytes that a compressed blob may claim to unpack to: a few written bytes cannot fill memory."""

_LEVEL: Final = 1
_PLAIN: Final = b"\0"
_ZSTD: Final = b"\1"
_DELTA: Final = b"\2"
_DIGEST: Final = 32
HEAD: Final = 1 + _DIGEST
"""Bytes at the beginning of a file that say what a delta is one to."""
_SAMPLE: Final = 16_384
_SAMPLES: Final = 4
_WORTH: Final = 0.9
"""Above this part of its size a compressed blob is not worth the unpacking."""


Read = Callable[[Digest], bytes]


def alone(base: Digest) -> bytes:
    """Where there is no other blob."""
    raise ValueError(f"a delta to {base[:12]}, which is not here")


class Older(NamedTuple):
    """A blob that another one may be much like."""

    digest: Digest
    data: bytes


class Codec(Protocol):
    """How a BlobStore writes blobs. Stateless for its callers and thread safe."""

    is_plain: bool
    """Whether a file holds its blob's own bytes, so that blocks can be shared."""

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        """The bytes of the file."""

    def encode_delta(self, data: bytes | memoryview, base: Older, otherwise: int) -> bytes | None:
        """The bytes of the file as a delta, if that pays; otherwise: how many it has without."""

    def base_of(self, head: bytes) -> Digest | None:
        """The blob that a file is a delta to, by its first HEAD bytes; None: it is none."""

    def decode(self, stored: bytes, read: Read = alone) -> bytes:
        """The reverse. Raises ValueError where stored was not made by ``encode``.

        read: gives the blob that it is a delta to.
        """


class Plain:
    """The blob as it is."""

    is_plain = True

    def encode(self, data: bytes | memoryview) -> bytes | memoryview:
        return data

    def encode_delta(self, data: bytes | memoryview, base: Older, otherwise: int) -> bytes | None:
        return None

    def base_of(self, head: bytes) -> Digest | None:
        return None

    def decode(self, stored: bytes, read: Read = alone) -> bytes:
        return stored


class Compressed:
    """zstd, or a delta, or the plain bytes where that does not shrink them; the first byte says."""

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

    def encode_delta(self, data: bytes | memoryview, base: Older, otherwise: int) -> bytes | None:
        new, old = memoryview(data).cast("B"), memoryview(base.data)
        delta = self._encoder().encode(new, old, otherwise)
        return delta and b"".join((_DELTA, bytes.fromhex(base.digest), delta))

    def base_of(self, head: bytes) -> Digest | None:
        is_delta = head[:1] == _DELTA and len(head) >= HEAD
        return Digest(head[1:HEAD].hex()) if is_delta else None

    def decode(self, stored: bytes, read: Read = alone) -> bytes:
        kind, rest = stored[:1], memoryview(stored)[1:]
        if kind == _PLAIN:
            return bytes(rest)
        if base := self.base_of(stored[:HEAD]):
            return deltas.decode(memoryview(stored)[HEAD:], read(base))
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

    def _encoder(self) -> deltas.Encoder:
        found: deltas.Encoder | None = getattr(self._own, "encoder", None)
        if found is None:
            found = self._own.encoder = deltas.Encoder(self._compressor().compress)
        return found


def _looks_dense(compressor: zstandard.ZstdCompressor, data: bytes | memoryview) -> bool:
    """Whether pieces from all over do not shrink: then the whole is not tried."""
    if len(data) <= 2 * _SAMPLE * _SAMPLES:
        return False
    step = (len(data) - _SAMPLE) // (_SAMPLES - 1)
    pieces = b"".join(data[at * step : at * step + _SAMPLE] for at in range(_SAMPLES))
    return len(compressor.compress(pieces)) > len(pieces) * _WORTH
