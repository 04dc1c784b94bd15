"""Under DMTCP there is no frozen process: a fork of the executor stands in for one.

It is made right after a checkpoint, while the executor is parked still, and lives until the next
one. Each request that it is handed (a channel, as a frozen process is) is answered by a fork of its
own, a copy: confined, at a low priority, with no descriptor of the user's, and ended with it. Only
the thread that forks is in it, so what other threads hold locked stays locked: whoever waits for
a copy does so for a limited time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Sequence

from kernel_runtime.executor.native import OpenFile

_NICE = 10  # as native/copies.h has it
_FDS = 3
_PR_SET_PDEATHSIG = 1

Serve = Callable[[int, Sequence[OpenFile]], object]


def begin(control: int, serve: Serve) -> None:
    """Leave a stand-in behind that waits at control, a SOCK_SEQPACKET socket; closes it here.

    serve(link, files): answers one request in a copy. files: what was open.
    """
    try:
        with contextlib.suppress(OSError):  # no process can be had: the other end sees that
            child = os.fork()
            if not child:
                _begin(control, serve)
            with contextlib.suppress(ChildProcessError):  # the user ignores SIGCHLD
                os.waitpid(child, 0)
    finally:
        os.close(control)


def _begin(control: int, serve: Serve) -> None:
    try:
        # once more, so that it is init's child: the session has none that it did not start
        if not os.fork():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is in the executor's group
            files = open_files()
            _close_all_but(control)
            os.nice(_NICE)
            with socket.socket(fileno=control) as link:
                link.send(b"%d" % pid_inside())
                while _answer(link, files, serve):
                    pass
    finally:
        os._exit(0)


def _answer(link: socket.socket, files: Sequence[OpenFile], serve: Serve) -> bool:
    """Have one request answered by a copy; say whether there was one."""
    words, fds, _, _ = socket.recv_fds(link, 16, _FDS)
    if not words:
        return False
    own = os.getpid()
    if not os.fork():
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != own:
            os._exit(1)
        link.send(b"%d" % pid_inside())
        link.close()
        channel, *output = fds
        for fd, standard in zip(output, (1, 2)):
            os.dup2(fd, standard)
            os.close(fd)
        serve(channel, files)
        os._exit(1)
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return True


def pid_inside() -> int:
    """This process's id in its pid namespace: DMTCP's os.getpid() says another one."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))


def open_files() -> list[OpenFile]:
    """The descriptors of this process that are open on a file with a name."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, StopIteration):
            path = os.readlink(f"/proc/self/fd/{name}")
            if not path.startswith("/") or path.endswith(" (deleted)"):
                continue
            with open(f"/proc/self/fdinfo/{name}") as lines:
                said = dict(line.split(":", 1) for line in lines if ":" in line)
            found.append(OpenFile(int(name), int(said["flags"], 8), int(said["pos"]), path))
    return found


def _close_all_but(kept: int) -> None:
    """Let go of what the user has open; DMTCP does not let its own be closed."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    if null > 2:
        os.close(null)
