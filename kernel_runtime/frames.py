"""The link's wire format: what supervisor and executor say to each other over one Unix socket.

A frame is a fixed header, the lengths of its parts, then the parts::

    u32 bytes after this field | u8 kind | u8 channel | u16 number of parts | u32 length … | part …

Integers are little-endian. Descriptors travel beside a frame (SCM_RIGHTS); a frame that comes with
descriptors says how many in its JSON, so none is attributed to the wrong frame.

Kinds:

``MESSAGE``  a Jupyter message as its multipart frames (identities, delimiter, unused signature,
             header, …).
``STREAM``   text printed by Python code: name, parent header as JSON, text. Cheaper than a
             message, and the supervisor joins neighbours.
``COMMAND``  JSON, from the supervisor to the executor.
``REPORT``   JSON, from the executor to the supervisor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from json import dumps, loads  # where user code replaces json.dumps, the link goes on
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BBH")
_TEXT = struct.Struct("<IBBHIII")

MAX_FRAME = 0xFFFF_FFFF
"""Bytes: the largest frame (4 GiB less one), set by the header's first field."""


class Kind(IntEnum):
    """What a frame carries."""

    MESSAGE = 1
    STREAM = 2
    COMMAND = 3
    REPORT = 4


class Channel(IntEnum):
    """The Jupyter channel that a ``MESSAGE`` frame belongs to; ``NONE`` for other kinds."""

    NONE = 0
    SHELL = 1
    CONTROL = 2
    STDIN = 3
    IOPUB = 4


class Frame(NamedTuple):
    """One decoded frame."""

    kind: int
    channel: int
    parts: list[bytes]

    def json(self) -> Any:
        """Return the first part decoded as JSON."""
        return loads(self.parts[0])


class FrameTooLarge(ValueError):
    """A message does not fit into one frame of the link."""


def encode(kind: Kind, parts: Sequence[bytes | memoryview], channel: int = 0) -> list[bytes]:
    """Return the buffers to be written for one frame, in order, without copying the parts.

    Raises FrameTooLarge if the parts add up to more than MAX_FRAME.
    """
    lengths = [p.nbytes if isinstance(p, memoryview) else len(p) for p in parts]
    head = _HEAD.pack(kind, channel, len(parts)) + struct.pack(f"<{len(parts)}I", *lengths)
    total = len(head) + sum(lengths)
    if total > MAX_FRAME:
        raise FrameTooLarge(f"A message of {total} bytes is too large for the link ({MAX_FRAME}).")
    return [_LENGTH.pack(total) + head, *parts]  # type: ignore[list-item]


def encode_text(name: bytes, parent: bytes, text: bytes) -> bytes:
    """Return a ``STREAM`` frame: the same as encode() gives, for the hottest path."""
    sizes = (len(name), len(parent), len(text))
    return _TEXT.pack(16 + sum(sizes), Kind.STREAM, 0, 3, *sizes) + name + parent + text


def encode_json(kind: Kind, value: Any) -> list[bytes]:
    """Return the buffers of a ``COMMAND`` or ``REPORT`` frame."""
    return encode(kind, [dumps(value).encode()])


class Decoder:
    """Cut a stream of bytes into frames. Holds what is incomplete until more comes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that were read from the link."""
        self._buffer += data

    def clear(self) -> None:
        """Forget what was fed: a woken process must not act on what its ancestor was sent."""
        self._buffer.clear()

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        (total,) = _LENGTH.unpack_from(buffer)
        end = 4 + total
        if len(buffer) < end:
            return None
        kind, channel, count = _HEAD.unpack_from(buffer, 4)
        at = 8 + 4 * count
        parts = []
        with memoryview(buffer) as view:
            for length in struct.unpack_from(f"<{count}I", buffer, 8):
                parts.append(bytes(view[at : at + length]))
                at += length
        del buffer[:end]
        return Frame(kind, channel, parts)
