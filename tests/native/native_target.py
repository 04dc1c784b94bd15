"""The library as the executor sees it: structures, and a target that tests drive over its link.

A target is a Python program that ends with ``serve()``. Tests have it evaluate expressions, run
statements and freeze itself; a woken copy of it goes on in the same loop with a new link.
"""

from __future__ import annotations

import _imp
import ctypes
import json
import os
import socket
import sys
import threading
import traceback
from typing import Any

MOVE, NEW_IDS = 1, 2
PING, WAKE, TWIN, UNSHARE, QUIT, IMAGE, PARK, DIFFERENCE = 1, 2, 3, 4, 5, 6, 7, 8
WHY_NONE, WHY_NO_BASE, WHY_HOT, WHY_UNKNOWN = 0, 1, 2, 3
WHY_LAYOUT, WHY_PROCESS, WHY_SHARED, WHY_MUCH = 4, 5, 6, 7
WAKE_NEW_IDS, WAKE_CONSUME, WAKE_KEEP_IDS_OR_FAIL, WAKE_COPY = 1, 2, 4, 8


class Freeze(ctypes.Structure):
    """struct tt_freeze of timetravel.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("listen_fd", ctypes.c_int32),
        ("link_fd", ctypes.c_int32),
        ("out_fd", ctypes.c_int32),
        ("err_fd", ctypes.c_int32),
        ("supervisor_pid", ctypes.c_int32),
        ("stop_timeout_ms", ctypes.c_uint32),
        ("aside_limit", ctypes.c_uint64),
        ("hot_min", ctypes.c_uint64),
        ("hold_fd", ctypes.c_int32),
        ("hold_timeout_ms", ctypes.c_uint32),
        ("python_threads", ctypes.c_uint64),
        ("filter", ctypes.c_uint64),
        ("in_copy", ctypes.c_uint64),
        ("python_count", ctypes.c_uint32),
        ("filter_count", ctypes.c_uint32),
        ("difference_fd", ctypes.c_int32),
        ("base_pid", ctypes.c_int32),
        ("difference_at", ctypes.c_uint64),
        ("difference_most", ctypes.c_uint64),
        ("frozen_pid", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("blocking_tid", ctypes.c_int32),
        ("blocking_name", ctypes.c_char * 16),
        ("stop_ns", ctypes.c_uint64),
        ("describe_ns", ctypes.c_uint64),
        ("aside_ns", ctypes.c_uint64),
        ("clone_ns", ctypes.c_uint64),
        ("pause_ns", ctypes.c_uint64),
        ("hold_ns", ctypes.c_uint64),
        ("aside_bytes", ctypes.c_uint64),
        ("hot_bytes", ctypes.c_uint64),
        ("rewritten_bytes", ctypes.c_uint64),
        ("difference_bytes", ctypes.c_uint64),
        ("woken_ids_kept", ctypes.c_uint32),
        ("frozen_fds", ctypes.c_int32),
        ("woken_copy", ctypes.c_uint32),
        ("difference_why", ctypes.c_int32),
    ]


class Held(ctypes.Structure):
    """struct tt_held."""

    _fields_ = [("size", ctypes.c_uint32), ("frozen_pid", ctypes.c_int32)]


class Reopened(ctypes.Structure):
    """struct tt_reopened."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("reopened", ctypes.c_uint32),
        ("failed", ctypes.c_uint32),
    ]


class Request(ctypes.Structure):
    """struct tt_request."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("command", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("arg", ctypes.c_int32),
        ("arg64", ctypes.c_uint64),
    ]


class Answer(ctypes.Structure):
    """struct tt_answer."""

    _fields_ = [
        ("error", ctypes.c_int32),
        ("pid", ctypes.c_int32),
        ("ns", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


def load() -> ctypes.PyDLL:
    """The library at $TT_LIBRARY."""
    library = ctypes.PyDLL(os.environ["TT_LIBRARY"])
    library.tt_freeze.argtypes = [ctypes.POINTER(Freeze), ctypes.c_char_p, ctypes.c_size_t]
    return library


LINK = 3  # number of the link in every target
STOP_TIMEOUT_MS = HOLD_TIMEOUT_MS = 60_000  # no test may depend on how busy the machine is


class Target:
    """Answers what comes over the link."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.library = load()
        self.names = names
        self.facts = Freeze()
        self.report = ctypes.create_string_buffer(1 << 16)

    def freeze(self, listen_fd: int, options: dict[str, int]) -> int:
        """Call tt_freeze; the result, with self.facts and self.report filled in."""
        f = self.facts
        f.size = ctypes.sizeof(Freeze)
        f.flags, f.listen_fd, f.link_fd, f.out_fd, f.err_fd = 0, listen_fd, LINK, 1, 2
        f.supervisor_pid, f.stop_timeout_ms = -1, STOP_TIMEOUT_MS
        f.aside_limit, f.hot_min = 256 << 20, 0
        f.hold_fd, f.hold_timeout_ms = -1, HOLD_TIMEOUT_MS
        f.difference_fd, f.base_pid, f.difference_most = -1, 0, 64 << 20
        own = threading.get_ident()
        others = [i for i in sys._current_frames() if i != own]
        idents = (ctypes.c_uint64 * (1 + len(others)))(own, *others)
        f.python_threads, f.python_count = ctypes.addressof(idents), len(idents)
        f.filter, f.filter_count = 0, 0
        after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
        f.in_copy = ctypes.cast(after_fork, ctypes.c_void_p).value or 0
        for name, value in options.items():
            setattr(f, name, value)
        _imp.acquire_lock()  # given back by PyOS_AfterFork_Child in a copy
        result = int(self.library.tt_freeze(f, self.report, len(self.report)))
        if not f.woken_copy:
            _imp.release_lock()
        return result

    def describe(self, result: int) -> dict[str, Any]:
        """What the test is told after a freeze, or first by a woken process."""
        names = [field[0] for field in Freeze._fields_ if field[0] != "reserved"]
        facts = {name: getattr(self.facts, name) for name in names}
        facts["blocking_name"] = facts["blocking_name"].decode()
        lines = self.report.value.decode("ascii").splitlines()
        return {
            "result": result,
            "facts": facts,
            "report": [line.split("\t") for line in lines],
            "pid": os.getpid(),
        }

    def answer(self, request: dict[str, Any], fds: list[int]) -> Any:
        """Do what a request says."""
        if "freeze" in request:
            given = dict(zip(request.get("descriptors", ()), fds[1:], strict=True))
            result = self.freeze(fds[0] if fds else -1, request["freeze"] | given)
            if result <= 0:
                for fd in fds:
                    os.close(fd)
            return self.describe(result)
        if "run" in request:
            exec(request["run"], self.names)
            return None
        return eval(request["value"], self.names)

    def loop(self) -> None:
        """Until the link is closed."""
        while True:
            link = socket.socket(fileno=os.dup(LINK))
            data, fds, _, _ = socket.recv_fds(link, 1 << 16, 4)
            link.close()
            if not data:
                os._exit(0)
            try:
                reply = {"ok": self.answer(json.loads(data), list(fds))}
            except BaseException:
                reply = {"error": traceback.format_exc()}
            os.write(LINK, json.dumps(reply, default=repr).encode())


def serve(names: dict[str, Any]) -> None:
    """Answer requests for ever, in the main thread."""
    sys.stdout.flush()
    target = Target(names)
    names["target"] = target
    target.loop()
