"""Cut a stream of bytes into pieces that stay the same where the stream does (tt_cut)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator

from kernel_runtime.errors import CheckpointRefused
from kernel_runtime.executor.native import LIBRARY
from kernel_runtime.hashing import address


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
