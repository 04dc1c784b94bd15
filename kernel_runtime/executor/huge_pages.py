"""Huge pages that a checkpoint has broken up are made whole again, while nothing else happens.

A cell that rewrites an array right after a checkpoint gets small pages in place of the huge ones
that it shares with the frozen process. Once that process has copied what it needs, they can be
huge again (native/huge.c): the next rewrite then meets one fault where it would meet 512.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable
from ctypes import c_int, c_uint32, c_uint64
from pathlib import Path

from kernel_runtime.executor.native import LIBRARY

_LEAST = 8 << 20
"""Bytes: smaller mappings are not worth it, as in un-sharing (hot_min)."""

_SLICE_S = 0.005
"""Seconds at a time: tasks that the user's cells have left run in the same loop."""

_LONG_S = 0.25
"""Seconds that a slice takes where memory is so fragmented that the kernel must move much."""

_REST_S = 60.0
"""Seconds without another attempt after one that was refused."""

_PAUSE_S = 5.0
"""Seconds likewise after one that took long: other work may have been the reason."""

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class HugePages:
    """Works in slices, each of which asks for the next one; a request ends them."""

    def __init__(self, watched: int, later: Callable[[Callable[[], None]], object]) -> None:
        """watched: a slice ends when this descriptor can be read. later: the loop's add_callback.

        Raises OSError or AttributeError without the C library.
        """
        # CDLL: the user's threads run meanwhile
        self._regain = ctypes.CDLL(str(LIBRARY)).tt_huge_regain
        self._regain.argtypes = (
            c_uint64,
            ctypes.POINTER(c_uint64),
            c_uint64,
            c_int,
            ctypes.POINTER(c_uint32),
        )
        self._watched = watched
        self._later = later
        self._at = c_uint64()
        self._made = c_uint32()
        self._runs = False
        self._not_before = 0.0
        self.made = 0
        """Units of 2 MiB that were made huge in all."""

    def begin(self) -> None:
        """Look at all large mappings, in the slices that follow."""
        if time.monotonic() < self._not_before or not _are_wanted():
            return
        self._at.value = 0
        if not self._runs:
            self._runs = True
            self._later(self._slice)

    def stop(self) -> None:
        """A request has come: after it most is shared again, and whoever wants it begins anew."""
        self._runs = False

    def _slice(self) -> None:
        if not self._runs:
            return
        started = time.monotonic()
        until = time.monotonic_ns() + int(_SLICE_S * 1e9)
        result = self._regain(
            _LEAST, ctypes.byref(self._at), until, self._watched, ctypes.byref(self._made)
        )
        self.made += self._made.value
        took = time.monotonic() - started
        self._runs = result == 1 and took < _LONG_S
        if self._runs:
            self._later(self._slice)
        elif result == 1 or result < 0:
            forever = -result in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
            rest = _PAUSE_S if result == 1 else _REST_S
            self._not_before = float("inf") if forever else started + rest


def _are_wanted() -> bool:
    """Whether this machine's administrator lets processes have them."""
    try:
        return "[never]" not in _ENABLED.read_text()
    except OSError:
        return False
