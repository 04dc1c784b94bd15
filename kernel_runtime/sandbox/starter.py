"""The program that makes a sandbox and becomes its init, started before it is known what for.

It needs as long as the imports of the supervisor, so ``python -m kernel_runtime`` begins it first,
for the likeliest mode, and both go on at once. One that turns out to be the wrong one is ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_END_S = 10.0


class Starter(NamedTuple):
    """The program, the supervisor's end of its socket, and what it was started for."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    mode: str
    clock_ahead_ns: int


_begun: list[Starter] = []


def begin(mode: str) -> None:
    """Start one ahead, for a call of take(). The caller is a child subreaper (prctl(2))."""
    _begun.append(_start(mode, 0))


def take(mode: str, clock_ahead_ns: int) -> Starter:
    """Return the one that was begun, if it is of that kind, or a new one."""
    while _begun:
        one = _begun.pop()
        if (one.mode, one.clock_ahead_ns) == (mode, clock_ahead_ns):
            return one
        _end(one)
    return _start(mode, clock_ahead_ns)


def _start(mode: str, clock_ahead_ns: int) -> Starter:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); "
        "from kernel_runtime.sandbox import init; init.main()"
    )
    with theirs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", code),
                *(str(theirs.fileno()), mode, str(clock_ahead_ns)),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    ours.setblocking(False)
    return Starter(process, ours, mode, clock_ahead_ns)


def _end(one: Starter) -> None:
    """Its init leaves when the socket closes, and is this process's child then: reap it."""
    init = 0
    with one.control, suppress(OSError, ValueError):
        one.control.settimeout(_END_S)
        init = json.loads(one.control.recv(1 << 16)).get("pid", 0)
    one.process.wait()
    if init and one.mode != "none":
        with suppress(ChildProcessError):
            os.waitpid(init, 0)
