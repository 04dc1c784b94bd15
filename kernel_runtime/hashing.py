"""Names of pieces of memory (BLAKE2b-256), four at once where the machine can (tt_digest4).

Imported by both sides of the sandbox, so it needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

LIBRARY: Final = Path(__file__).resolve().parent / "native" / "libtimetravel.so"

AT_ONCE: Final = 4
_BLOCK: Final = 128
_BYTES: Final = 32


class _Buffer(ctypes.Structure):
    """Py_buffer: the address of memory that may be read-only, which ctypes has no other way to."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


ANY_LAYOUT: Final = 0x11C
"""PyBUF_FULL_RO: memory that need not be contiguous."""


@contextlib.contextmanager
def address(exporter: object, flags: int = 0) -> Iterator[int]:
    """Where memory, read-only or not, begins; it stays there meanwhile. flags: 0, ANY_LAYOUT."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(exporter), ctypes.byref(buffer), flags)
    try:
        yield buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


_Four = Callable[[ctypes.Array[ctypes.c_void_p], int, ctypes.Array[ctypes.c_char]], int]


@functools.cache
def _four() -> _Four | None:
    try:
        # CDLL: other threads of Python run meanwhile
        function = ctypes.CDLL(str(LIBRARY)).tt_digest4
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p * AT_ONCE, ctypes.c_size_t, ctypes.c_char_p)
    function.restype = ctypes.c_int
    four: _Four = function
    return four


def digests(pieces: Sequence[memoryview]) -> list[str]:
    """What the store calls each of these pieces of contiguous memory (``digest_of``), in hex.

    At their fastest where four of them have one size, a multiple of 128 bytes.
    """
    found = [""] * len(pieces)
    order = sorted(range(len(pieces)), key=lambda index: pieces[index].nbytes)
    for start in range(0, len(order), AT_ONCE):
        group = [pieces[index] for index in order[start : start + AT_ONCE]]
        names = _at_once(group) or [
            hashlib.blake2b(piece, digest_size=_BYTES).hexdigest() for piece in group
        ]
        for index, name in zip(order[start:], names):
            found[index] = name
    return found


def _at_once(group: Sequence[memoryview]) -> list[str] | None:
    sizes = {piece.nbytes for piece in group}
    four = _four()
    if four is None or len(group) != AT_ONCE or len(sizes) != 1 or sizes.pop() % _BLOCK:
        return None
    out = ctypes.create_string_buffer(AT_ONCE * _BYTES)
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(address(piece)) for piece in group]
        if four((ctypes.c_void_p * AT_ONCE)(*places), group[0].nbytes, out):
            return None
    return [out.raw[at : at + _BYTES].hex() for at in range(0, len(out), _BYTES)]
