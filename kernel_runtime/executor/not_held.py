"""Under DMTCP: what a checkpoint of this process will not hold, said when it is made.

What is looked for is what DMTCP 5.0 was found to lose without a word (tests/states; docs/engines.md
has the table).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import stat
import termios
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kernel_runtime.executor.stand_in import pid_inside

Notes = list[list[str]]
Settings = dict[str, tuple[object, str]]
"""Name, value, and what becomes of another value."""

_LOST: Final = "DMTCP does not bring it back"
_FATAL: Final = "DMTCP cannot restart the process with it: its variables alone can come back"
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0
_DMTCPS: Final = range(820, 1024)
"""Descriptors that DMTCP takes for itself (PROTECTED_FD_START of its source is 820)."""

_NAME: Final = Path("/proc/self/comm")
_KINDS: Final = {
    "/memfd:": "memfd",
    "anon_inode:[timerfd]": "timerfd",
    "/dev/pts/": "terminal",
    "/dev/ptmx": "terminal",
}
_LIMITS: Final = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_INTERVAL_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_PR_GET_TIMERSLACK: Final = 30
_PR_GET_CHILD_SUBREAPER: Final = 37


class NotHeld:
    """Remembers how the process began, and finds what a checkpoint of it would lose."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._began = _settings(self._libc)
        self._own = {*_descriptors(), *_DMTCPS}
        """The kernel's, which it puts right itself."""
        self._kcmp = _SYS_KCMP.get(os.uname().machine)

    def notes(self) -> Notes:
        """One [kind, subject, detail] for each."""
        return [*self._files(), *_changed(self._began, _settings(self._libc))]

    def _files(self) -> Notes:
        found: Notes = []
        files: dict[tuple[int, int], list[int]] = defaultdict(list)
        pid = pid_inside()
        for fd, path in _descriptors().items():
            with contextlib.suppress(OSError):
                status = os.fstat(fd)
                same = files[status.st_dev, status.st_ino]
                first = next((one for one in same if self._is_one(pid, one, fd)), None)
                if first is None:
                    same.append(fd)
                if fd in self._own:
                    continue
                if first is not None:
                    subject = f"{fd} ({path}), the same open file as {first}"
                    found.append(["descriptor", subject, _LOST])
                elif (kind := next((k for k in _KINDS if path.startswith(k)), None)) is not None:
                    found.append([_KINDS[kind], str(fd), _LOST])
                elif stat.S_ISREG(status.st_mode):
                    found += [[kind, path, _LOST] for kind in _locks(fd)]
                elif stat.S_ISSOCK(status.st_mode):
                    found += _socket(fd)
        return found

    def _is_one(self, pid: int, one: int, other: int) -> bool:
        """Whether two descriptors are of one open file, as dup(2) makes them."""
        if self._kcmp is None:
            return False
        arguments = (self._kcmp, pid, pid, _KCMP_FILE, one, other)
        return bool(self._libc.syscall(*map(ctypes.c_long, arguments)) == 0)


def put_back_later() -> Callable[[], None]:
    """Remember what is lost and can be set again; what is returned does that."""
    umask = os.umask(0)
    os.umask(umask)
    name = _NAME.read_bytes()
    limits = {which: resource.getrlimit(which) for which in _LIMITS}
    files = limits[resource.RLIMIT_NOFILE]
    # DMTCP's own descriptors are above a low limit: no fork and no restart works under it
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))

    def put_back() -> None:
        for which, values in limits.items():
            with contextlib.suppress(OSError, ValueError):  # a hard one that is lower now
                resource.setrlimit(which, values)
        os.umask(umask)
        _NAME.write_bytes(name)

    return put_back


def _descriptors() -> dict[int, str]:
    """Number and name of each, in order."""
    found = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _locks(fd: int) -> list[str]:
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        held = [line.split()[2] for line in lines if line.startswith("lock:")]
    return ["lease" if kind == "LEASE" else "lock" for kind in held]


def _socket(fd: int) -> Notes:
    with socket.socket(fileno=os.dup(fd)) as found:
        if found.type != socket.SOCK_DGRAM:
            return []
        if found.family == socket.AF_UNIX:
            return [["socket", f"{fd}, a Unix socket for datagrams", _FATAL]]
        waiting = array.array("i", [0])
        fcntl.ioctl(found, termios.FIONREAD, waiting)
    return [["datagrams that nobody has read", str(fd), _LOST]] if waiting[0] else []


def _settings(libc: ctypes.CDLL) -> Settings:
    reaper = ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(reaper), 0, 0, 0)
    with open("/proc/self/status") as status:
        locked = next((line for line in status if line.startswith("VmLck:")), "")
    interval = [signal.getitimer(which) != (0.0, 0.0) for which in _INTERVAL_TIMERS]
    return {
        "nice value": (os.getpriority(os.PRIO_PROCESS, 0), _LOST),
        "processors to run on": (os.sched_getaffinity(0), _LOST),
        "timer slack": (libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0), _LOST),
        "child subreaper": (reaper.value, _LOST),
        "handler of SIGUSR2": (str(signal.getsignal(signal.SIGUSR2)), _LOST),
        "memory that mlock(2) locked": (locked, _LOST),
        "interval timer": (interval, _LOST),
        "RLIMIT_NOFILE": (resource.getrlimit(resource.RLIMIT_NOFILE)[1], _FATAL),
    }


def _changed(began: Settings, now: Settings) -> Notes:
    return [["setting", name, why] for name, (value, why) in now.items() if value != began[name][0]]
