"""The channel over which a namespace travels: blobs by their digest both ways, and words of JSON.

A stream socket between a process in the sandbox (``BlobClient``) and the supervisor
(``serve``). Each frame is a head (kind and size) and its payload; blobs are named by the 32 bytes
of their BLAKE2b-256. The side in the sandbox asks, the supervisor answers in order:

    MISSING  digests         -> MISSING  one byte for each: 1 if it is not stored
    PUT      digest, digest, bytes   (no answer; what does not fit its digest ends the channel; the
                                 second names an older version, or is zero)
    GET      digest          -> DATA bytes, or ERROR text
    WORDS    JSON               (both ways; what they mean is the caller's)

Imported by both sides, so it needs the standard library alone. The supervisor trusts nothing that
comes: sizes are bounded, digests are checked by the store.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

_HEAD: Final = struct.Struct("=BQ")
_DIGEST: Final = 32
BLOB_MOST: Final = 4 << 20
"""Bytes of one blob."""

_WORDS_MOST: Final = 256 << 20
_DIGESTS_MOST: Final = 4096


class ChannelError(Exception):
    """The other side is gone, silent for too long, or says what it must not."""


class ChannelSilent(ChannelError):
    """Nothing came within the socket's timeout."""


class Frame(IntEnum):
    """Kinds of frames."""

    MISSING = 1
    PUT = 2
    GET = 3
    DATA = 4
    ERROR = 5
    WORDS = 6


_MOST: Final = {
    Frame.MISSING: _DIGESTS_MOST * _DIGEST,
    Frame.PUT: 2 * _DIGEST + BLOB_MOST,
    Frame.GET: _DIGEST,
    Frame.DATA: BLOB_MOST,
    Frame.ERROR: 1 << 16,
    Frame.WORDS: _WORDS_MOST,
}


class Blobs(Protocol):
    """The supervisor's store, as far as a channel needs it."""

    def missing(self, digests: Sequence[str]) -> Collection[str]:
        """Those that are not stored."""

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> Any:
        """Store a blob. Raises where its bytes do not fit the digest, or nothing can be written.

        older: one that it may be much like.
        """

    def get(self, digest: str) -> bytes:
        """Return a blob's bytes, verified. Raises where it is missing or damaged."""


def _send(link: socket.socket, kind: Frame, *parts: bytes | memoryview) -> None:
    size = sum(len(part) for part in parts)
    link.sendall(_HEAD.pack(kind, size))
    for part in parts:
        link.sendall(part)


def _receive_into(link: socket.socket, view: memoryview) -> None:
    while len(view):
        try:
            count = link.recv_into(view)
        except TimeoutError:
            raise ChannelSilent("it says nothing any more") from None
        except OSError as error:
            raise ChannelError(str(error)) from error
        if not count:
            raise ChannelError("it has ended")
        view = view[count:]


def _head(link: socket.socket) -> tuple[Frame, int]:
    head = bytearray(_HEAD.size)
    _receive_into(link, memoryview(head))
    number, size = _HEAD.unpack(head)
    try:
        kind = Frame(number)
    except ValueError:
        raise ChannelError(f"it sent a frame of kind {number}") from None
    if size > _MOST[kind]:
        raise ChannelError(f"it sent {size} bytes as {kind.name}")
    return kind, size


def _receive(link: socket.socket) -> tuple[Frame, bytearray]:
    kind, size = _head(link)
    payload = bytearray(size)
    _receive_into(link, memoryview(payload))
    return kind, payload


def say(link: socket.socket, **words: Any) -> None:
    """Send words. Raises OSError."""
    _send(link, Frame.WORDS, json.dumps(words).encode("utf-8", "surrogatepass"))


def _words(payload: bytearray) -> dict[str, Any]:
    try:
        words = json.loads(payload.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ChannelError(f"its words are not JSON: {error}") from error
    if not isinstance(words, dict):
        raise ChannelError("its words are not an object")
    return words


def serve(link: socket.socket, blobs: Blobs, heard: Callable[[dict[str, Any]], bool]) -> None:
    """Answer the side in the sandbox until heard(words) says that it was the last.

    The socket's timeout bounds each wait. Raises ChannelError, and what the store raises for a
    blob that is to be stored.
    """
    while True:
        kind, payload = _receive(link)
        if kind == Frame.WORDS:
            if heard(_words(payload)):
                return
        elif kind == Frame.MISSING:
            names = [payload[i : i + _DIGEST].hex() for i in range(0, len(payload) - 31, _DIGEST)]
            missing = set(blobs.missing(names))
            _send(link, Frame.MISSING, bytes(name in missing for name in names))
        elif kind == Frame.PUT:
            with memoryview(payload) as view:
                digest, older = bytes(view[:_DIGEST]), bytes(view[_DIGEST : 2 * _DIGEST])
                blobs.put(digest.hex(), view[2 * _DIGEST :], older.hex() if any(older) else None)
        elif kind == Frame.GET:
            _answer_get(link, blobs, payload.hex())
        else:
            raise ChannelError(f"it sent {kind.name}")


def _answer_get(link: socket.socket, blobs: Blobs, digest: str) -> None:
    try:
        data = blobs.get(digest)
    except Exception as error:  # a damaged blob costs the variable that needs it, not the channel
        _send(link, Frame.ERROR, str(error).encode("utf-8", "replace")[: _MOST[Frame.ERROR]])
    else:
        _send(link, Frame.DATA, data)


class BlobClient:
    """The sandbox's end. Is the sink of a dump and the source of a load."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def missing(self, digests: Sequence[str]) -> set[str]:
        """Those that the supervisor has not stored."""
        found: set[str] = set()
        for start in range(0, len(digests), _DIGESTS_MOST):
            part = digests[start : start + _DIGESTS_MOST]
            _send(self._link, Frame.MISSING, b"".join(bytes.fromhex(name) for name in part))
            flags = self._expect(Frame.MISSING)
            found.update(name for name, flag in zip(part, flags) if flag)
        return found

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        """Have a blob of BLOB_MOST bytes at most stored. older: one that it may be much like."""
        view = memoryview(data).cast("B")
        names = bytes.fromhex(digest), bytes.fromhex(older) if older else bytes(_DIGEST)
        _send(self._link, Frame.PUT, *names, view)

    def get(self, digest: str) -> bytes:
        """Return a blob. Raises ChannelError with the reason where it cannot be had."""
        _send(self._link, Frame.GET, bytes.fromhex(digest))
        return bytes(self._expect(Frame.DATA))

    def get_into(self, digest: str, target: memoryview) -> None:
        """Read a blob into target, which is as long as it."""
        _send(self._link, Frame.GET, bytes.fromhex(digest))
        kind, size = _head(self._link)
        if kind == Frame.DATA and size == len(target):
            _receive_into(self._link, target)
            return
        payload = bytearray(size)
        _receive_into(self._link, memoryview(payload))
        raise ChannelError(_text(payload) if kind == Frame.ERROR else "a blob has another size")

    def say(self, **words: Any) -> None:
        """Send words."""
        say(self._link, **words)

    def hear(self) -> dict[str, Any]:
        """Wait for words."""
        return _words(self._expect(Frame.WORDS))

    def _expect(self, wanted: Frame) -> bytearray:
        kind, payload = _receive(self._link)
        if kind == Frame.ERROR:
            raise ChannelError(_text(payload))
        if kind != wanted:
            raise ChannelError(f"the supervisor sent {kind.name}")
        return payload


def _text(payload: bytearray) -> str:
    return payload.decode("utf-8", "replace")
