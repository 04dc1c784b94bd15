"""Cut a stream of bytes into pieces that stay the same where the stream does (tt_cut)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

from kernel_runtime.errors import CheckpointRefused
from kernel_runtime.executor.native import LIBRARY


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


@contextlib.contextmanager
def address(view: memoryview) -> Iterator[int]:
    """Where contiguous memory, read-only or not, begins; it stays there meanwhile."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        yield buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


@functools.cache
def _cutter() -> Callable[[int, int], int]:
    try:
        # CDLL: other threads of Python run meanwhile
        function = ctypes.CDLL(str(LIBRARY)).tt_cut
    except (OSError, AttributeError) as error:
        raise CheckpointRefused(
            f"Variables cannot be stored here: {error}. Nothing was lost. "
            "Reinstall jupyter_timetravel from a wheel for this platform or with a C compiler."
        ) from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_size_t
    cut: Callable[[int, int], int] = function
    return cut


def cut(view: memoryview) -> Iterator[memoryview]:
    """Yield the pieces of contiguous memory, each of 64 KiB to 1 MiB (the last may be shorter).

    Where to cut depends on the bytes near by only: a byte put in changes one or two pieces. The
    same on every machine. Raises CheckpointRefused without the C library.
    """
    next_size = _cutter()
    if not view.nbytes:
        return
    whole = view.cast("B")
    with address(whole) as start:
        at, end = 0, len(whole)
        while at < end:
            size = next_size(start + at, end - at)
            yield whole[at : at + size]
            at += size
