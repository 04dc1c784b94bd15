"""The executor waits while it is checkpointed from outside, by DMTCP or by CRIU.

CRIU hands a process that it restores another socket in place of the link, and the word that it gets
is another one than that which sends it on (engines/criu_tree.py is at the other end).

DMTCP keeps a link to the outside as it is when a process goes on after a checkpoint; in one that it
restarts there is none, and a read of the link says so. Then a socket with a known name is asked for
the new link (engines/dmtcp.py is at its other end). Where nobody listens there, nothing was
restarted: the supervisor is gone, and this process ends as it would have ended between two cells.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable
from typing import Any

from kernel_runtime.executor.link import Link
from kernel_runtime.frames import Frame, Kind

WAKE = "wake"
"""As in engines/dmtcp.py."""

WOKEN = b"woken"
"""As in engines/criu_tree.py."""
_WORD = 16


def park(link: Link, directory: str, leave_stand_in: Callable[[int], object], **report: Any) -> int:
    """Say that it waits (with the report), wait; return 1 in a process that came back, else 0.

    leave_stand_in(control): is called before it goes on where a stand-in is asked for.
    """

    def goes_on(frame: Frame) -> bool:
        return frame.kind == Kind.COMMAND and frame.json()["command"] == "unpark"

    # held: no other thread's frame is half sent when the link is cut
    with link.held():
        threads = len(os.listdir("/proc/self/task")) - 1  # one is DMTCP's
        link.report(report="parked", threads=threads, **report)
        try:
            word = link.wait(goes_on, lambda frame: False).json()
        except (EOFError, OSError):
            if not _take_up(link, directory):
                os._exit(1)
            return 1
        if word["stand_in"]:
            leave_stand_in(link.take_descriptor())
        return 0


def park_aside(link: Link, control: int, **report: Any) -> int:
    """Say that it waits, wait at another socket; return 1 in a process that CRIU has restored.

    control: a descriptor; closed at the end. Where its other end is closed it goes on.
    """
    outside = {"link": link.fd, "control": control}
    outside |= dict(zip(("out", "err"), link.output))
    inodes = {name: os.fstat(fd).st_ino for name, fd in outside.items()}
    with socket.socket(fileno=control) as waited_at, link.held():
        link.report(report="parked", outside=inodes, **report)
        woken = waited_at.recv(_WORD) == WOKEN
    if woken:
        link.reset()
    return int(woken)


def _take_up(link: Link, directory: str) -> bool:
    """Ask for a new link and new pipes; say whether there were any."""
    try:
        at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                # by the directory: its path may be longer than an address holds
                connection.connect(f"/proc/self/fd/{at}/{WAKE}")
                fds = _receive(connection)
        finally:
            os.close(at)
    except OSError:
        return False
    targets = (link.fd, *link.output)
    if len(fds) != len(targets):
        return False
    for fd, target in zip(fds, targets):
        os.dup2(fd, target, inheritable=False)
        os.close(fd)
    link.reset()
    return True


def _receive(connection: socket.socket) -> list[int]:
    fds = array.array("i")
    _, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_SPACE(8 * fds.itemsize))
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()
