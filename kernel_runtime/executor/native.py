"""The C library, as the executor calls it. See native/timetravel.h and docs/native.md."""

from __future__ import annotations

import _imp
import ctypes
import errno
import os
import re
import sys
import threading
from collections.abc import Sequence
from ctypes import c_char, c_int32, c_uint32, c_uint64
from pathlib import Path
from typing import Any, NamedTuple

from kernel_runtime.errors import CheckpointRefused
from kernel_runtime.executor import confine

ABI = 4
MOVE = 1
NEW_IDS = 2

LIBRARY = Path(__file__).resolve().parents[1] / "native" / "libtimetravel.so"
_REPORT_BYTES = 1 << 18
_INSTRUCTION_BYTES = 8  # struct sock_filter
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")

_SMALL_MAPPING = 8 << 20
"""Bytes: larger mappings are un-shared by the frozen process (hot_min)."""

_PAGES_MOST = 8192
"""Pages that are touched after a freeze: 32 MiB, some milliseconds. None where there are more."""


class FreezeArguments(ctypes.Structure):
    """struct tt_freeze."""

    _fields_ = (
        ("size", c_uint32),
        ("flags", c_uint32),
        ("listen_fd", c_int32),
        ("link_fd", c_int32),
        ("out_fd", c_int32),
        ("err_fd", c_int32),
        ("supervisor_pid", c_int32),
        ("stop_timeout_ms", c_uint32),
        ("aside_limit", c_uint64),
        ("hot_min", c_uint64),
        ("hold_fd", c_int32),
        ("hold_timeout_ms", c_uint32),
        ("python_threads", c_uint64),
        ("filter", c_uint64),
        ("in_copy", c_uint64),
        ("python_count", c_uint32),
        ("filter_count", c_uint32),
        ("difference_fd", c_int32),
        ("base_pid", c_int32),
        ("difference_at", c_uint64),
        ("difference_most", c_uint64),
        ("frozen_pid", c_int32),
        ("threads", c_int32),
        ("blocking_tid", c_int32),
        ("blocking_name", c_char * 16),
        ("stop_ns", c_uint64),
        ("describe_ns", c_uint64),
        ("aside_ns", c_uint64),
        ("clone_ns", c_uint64),
        ("pause_ns", c_uint64),
        ("hold_ns", c_uint64),
        ("aside_bytes", c_uint64),
        ("hot_bytes", c_uint64),
        ("rewritten_bytes", c_uint64),
        ("difference_bytes", c_uint64),
        ("woken_ids_kept", c_uint32),
        ("frozen_fds", c_int32),
        ("woken_copy", c_uint32),
        ("difference_why", c_int32),
    )


class Library:
    """libtimetravel.so, loaded. Raises CheckpointRefused if it cannot be."""

    def __init__(self) -> None:
        try:
            # PyDLL: the interpreter lock is held throughout, so no Python code runs in the pause
            self._library = ctypes.PyDLL(str(LIBRARY))
            self._freeze = self._library.tt_freeze
        except (OSError, AttributeError) as error:
            raise CheckpointRefused(
                f"Processes cannot be frozen here: {error}. Files are still captured. "
                "Reinstall jupyter_timetravel from a wheel for this platform or with a C compiler."
            ) from error
        self._freeze.argtypes = (ctypes.POINTER(FreezeArguments), ctypes.c_char_p, ctypes.c_size_t)
        self._freeze.restype = ctypes.c_int
        self._report = ctypes.create_string_buffer(_REPORT_BYTES)
        self._filter = _filter()

    def note_pages(self) -> None:
        """Note the pages written since the last freeze: the next cell will write them again."""
        self._library.tt_pages_note(c_uint64(_SMALL_MAPPING), c_uint32(_PAGES_MOST))

    def touch_pages(self, watched: int) -> int:
        """Make the noted pages this process's own again; stop when watched can be read."""
        touched: int = self._library.tt_pages_touch(watched)
        return touched

    def freeze(
        self,
        *,
        python_threads: Sequence[int] = (),
        hold_fd: int = -1,
        hold_timeout_ms: int,
        **arguments: int,
    ) -> tuple[int, FreezeArguments, list[list[str]]]:
        """Call tt_freeze; return (0 or which waking this is, results, notes).

        A note is [kind, subject, detail]: what the frozen process does not hold, or, in a woken
        one, what could not be rebuilt. Raises CheckpointRefused; then nothing happened.

        python_threads: threading.get_ident() of each thread that runs Python, the caller's own
        first (see running_python); without them no copy can be woken to be read.
        hold_fd: a connected SOCK_SEQPACKET socket. Its other end is told when the process is
        stopped and lets it go on (struct tt_held in timetravel.h).
        """
        idents = (c_uint64 * len(python_threads))(*python_threads)
        values = FreezeArguments(
            python_threads=ctypes.addressof(idents),
            python_count=len(idents),
            filter=ctypes.addressof(self._filter),
            filter_count=len(self._filter) // _INSTRUCTION_BYTES,
            in_copy=ctypes.cast(ctypes.pythonapi.PyOS_AfterFork_Child, ctypes.c_void_p).value,
            size=ctypes.sizeof(FreezeArguments),
            hold_fd=hold_fd,
            hold_timeout_ms=hold_timeout_ms,
            **arguments,
        )
        self._report.value = b""
        # as os.fork() does: PyOS_AfterFork_Child, which is called in a copy, gives it back
        _imp.acquire_lock()
        result = self._freeze(ctypes.byref(values), self._report, _REPORT_BYTES)
        if not values.woken_copy:
            _imp.release_lock()
        notes = parse_notes(self._report.value)
        if result < 0:
            raise CheckpointRefused(_explain(-result, values, notes))
        return result, values, notes


def _filter() -> ctypes.Array[c_char]:
    """What a copy may do, for tt_freeze; empty on machines that no filter is known for."""
    try:
        code = confine.program(os.uname().machine)
    except KeyError:
        code = b""
    return (c_char * len(code)).from_buffer_copy(code)


def parse_notes(report: bytes) -> list[list[str]]:
    """Split the library's report, "kind<tab>subject<tab>detail" in each line."""
    lines = report.decode("utf-8", "replace").splitlines()
    return [[*line.split("\t"), "", ""][:3] for line in lines if line]


def running_python() -> list[int]:
    """Return threading.get_ident() of each thread that runs Python, the caller's own first."""
    own = threading.get_ident()
    # the second has threads without a frame, too: such as have just been started
    others = sys._current_frames().keys() | sys._current_exceptions().keys()
    return [own, *sorted(others - {own})]


class OpenFile(NamedTuple):
    """A descriptor that was open on a file with a name when the process was frozen."""

    fd: int
    flags: int
    """As of fcntl(2), F_GETFL."""
    offset: int
    """Bytes."""
    path: str


def open_files(notes: Sequence[Sequence[str]]) -> list[OpenFile]:
    """Return the files that the report of a copy names."""
    found = []
    for kind, subject, detail in notes:
        if kind == "file" and subject.isdigit():
            flags, offset, path = detail.split(" ", 2)
            name = _ESCAPE.sub(lambda hex: bytes([int(hex[1], 16)]), path.encode())
            found.append(OpenFile(int(subject), int(flags, 8), int(offset), os.fsdecode(name)))
    return found


def _explain(number: int, values: FreezeArguments, notes: list[list[str]]) -> str:
    reasons = "; ".join(f"{kind} {subject}: {detail}" for kind, subject, detail in notes)
    if number == errno.ETIMEDOUT:
        named = (t.name for t in threading.enumerate() if t.native_id == values.blocking_tid)
        name = next(named, values.blocking_name.decode("utf-8", "replace"))
        return (
            f"The process could not be frozen: its thread {values.blocking_tid} ({name}) did not "
            "stop in time. The session runs on; files are captured. The next cell tries again."
        )
    return (
        f"The process could not be frozen: {os.strerror(number)}"
        f"{f' ({reasons})' if reasons else ''}. The session runs on; files are captured."
    )


def load() -> tuple[Any, str]:
    """Return (library or None, why not)."""
    try:
        return Library(), ""
    except CheckpointRefused as error:
        return None, str(error)
