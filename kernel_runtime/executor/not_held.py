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
import select
import signal
import socket
import stat
import termios
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kernel_runtime.executor import endless, guard_pages
from kernel_runtime.executor.stand_in import pid_inside

Notes = list[list[str]]
Settings = dict[str, tuple[object, str]]
"""Name, value, and what becomes of another value."""

_LOST: Final = "DMTCP does not bring it back"
_FATAL: Final = "DMTCP cannot restart the process with it: its variables alone can come back"
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE: Final = 0

_NAME: Final = Path("/proc/self/comm")
_KINDS: Final = {
    "/memfd:": "memfd",
    "anon_inode:[fanotify]": "fanotify",
    "anon_inode:[perf_event]": "perf",
    "anon_inode:[pidfd]": "pidfd",
    "anon_inode:[timerfd]": "timerfd",
    "anon_inode:[userfaultfd]": "userfaultfd",
    "/dev/pts/": "terminal",
    "/dev/ptmx": "terminal",
}
_LIMITS: Final = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_INTERVAL_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_F_GETPIPE_SZ: Final = 1032
_PIPE_SIZE: Final = 65536
_SPECIAL: Final = 0xF0000000
"""EPOLLET, EPOLLONESHOT, EPOLLWAKEUP, EPOLLEXCLUSIVE."""
_ADVICE: Final = {
    "rr": "advice about memory (MADV_RANDOM)",
    "sr": "advice about memory (MADV_SEQUENTIAL)",
    "dd": "advice about memory (MADV_DONTDUMP)",
    "wf": "advice about memory (MADV_WIPEONFORK)",
    "sl": "a seal of memory (mseal)",
}
_NUMBERS: Final = {
    "ioprio_get": {"x86_64": 252, "aarch64": 31},
    "membarrier": {"x86_64": 324, "aarch64": 283},
    "keyctl": {"x86_64": 250, "aarch64": 219},
}
_REGISTRATIONS: Final = 512  # MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3
_NO_RANDOMIZE: Final = 0x0040000
"""ADDR_NO_RANDOMIZE, which each process has that DMTCP restarted."""
_PR_GET_DUMPABLE: Final = 3
_PR_SET_NAME: Final = 15
_PR_GET_TIMERSLACK: Final = 30
_PR_GET_CHILD_SUBREAPER: Final = 37


class NotHeld:
    """Remembers how the process began, and finds what a checkpoint of it would lose."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._began = _settings(self._libc)
        self._memory = _memory()
        """What Python, its libraries and DMTCP have set themselves."""
        self._own = {*_descriptors(), *endless.DMTCPS}
        """The kernel's, which it puts right itself."""
        self._kcmp = _SYS_KCMP.get(os.uname().machine)

    def notes(self) -> Notes:
        """One [kind, subject, detail] for each."""
        return [
            *self._files(),
            *_changed(self._began, _settings(self._libc)),
            *_threads(),
            *(note for note in _memory() if note not in self._memory),
        ]

    def endless(self) -> list[str]:
        """Why a checkpoint would not end, in words; empty where it would."""
        return endless.sockets(self._own)

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
                    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_TMPFILE & ~os.O_DIRECTORY:
                        found.append(["file without a name", path, _FATAL])
                elif stat.S_ISDIR(status.st_mode):
                    if os.lseek(fd, 0, os.SEEK_CUR):
                        found.append(["listing that is half read", path, _LOST])
                elif stat.S_ISFIFO(status.st_mode):
                    if fcntl.fcntl(fd, _F_GETPIPE_SZ) != _PIPE_SIZE:
                        found.append(["size of a pipe", str(fd), _LOST])
                elif path == "anon_inode:[eventpoll]":
                    found += _modes(fd)
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
    guards = guard_pages.lift()
    limits = {which: resource.getrlimit(which) for which in _LIMITS}
    files = limits[resource.RLIMIT_NOFILE]
    # DMTCP's own descriptors are above a low limit: no fork and no restart works under it
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))

    def put_back() -> None:
        for which, values in limits.items():
            with contextlib.suppress(OSError, ValueError):  # a hard one that is lower now
                resource.setrlimit(which, values)
        guard_pages.install(guards)
        os.umask(umask)
        set_name(name)

    return put_back


def set_name(name: bytes) -> None:
    """Give the calling thread, which is the first one, its name; also where it is not dumpable."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.rstrip(b"\n"), 0, 0, 0)


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
        if found.family == socket.AF_NETLINK:
            return [["netlink socket", str(fd), _LOST]]
        if found.family == socket.AF_UNIX and _holds_descriptors(found):
            return [["descriptors that were sent and not received", str(fd), _LOST]]
        if found.type == socket.SOCK_STREAM:
            return _waiting(found, fd)
        if found.type != socket.SOCK_DGRAM:
            return []
        if found.family == socket.AF_UNIX:
            return [["socket", f"{fd}, a Unix socket for datagrams", _FATAL]]
        waiting = array.array("i", [0])
        fcntl.ioctl(found, termios.FIONREAD, waiting)
    return [["datagrams that nobody has read", str(fd), _LOST]] if waiting[0] else []


def _waiting(found: socket.socket, fd: int) -> Notes:
    """Of a socket that listens: connections that were not accepted yet."""
    if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return []
    look = select.poll()
    look.register(found, select.POLLIN)
    return [["connections that were not accepted", str(fd), _LOST]] if look.poll(0) else []


def _holds_descriptors(found: socket.socket) -> bool:
    """Whether the first message that waits has some: there is no room for them in this look."""
    with contextlib.suppress(OSError):
        flags = found.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)[2]
        return bool(flags & socket.MSG_CTRUNC)
    return False


def _modes(fd: int) -> Notes:
    """Entries of epoll that are more than levels."""
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        events = [int(line.split()[3], 16) for line in lines if line.startswith("tfd:")]
    special = sum(bool(one & _SPECIAL) for one in events)
    return [["entries of epoll that tell once or at edges", str(fd), _LOST]] if special else []


def _threads() -> Notes:
    """Threads that are not as the first one: they are made again as that is."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, IndexError):
            nice = (task / "stat").read_text().rpartition(")")[2].split()[16]
            found[nice, _field(task / "status", "Cpus_allowed:")].append(task.name)
    if len(found) < 2:
        return []
    return [["setting", "nice value or processors of single threads", _LOST]]


def _memory() -> Notes:
    """What is said of memory in /proc, and of which nothing comes back."""
    found: Notes = []
    kept: dict[str, int] = defaultdict(int)
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "/[aio]" in line:
                found.append(["asynchronous input and output (io_setup)", "", _FATAL])
            if line.startswith("VmFlags:"):
                for flag in _ADVICE.keys() & set(line.split()):
                    kept[flag] += 1
    found += [[_ADVICE[flag], f"{count} regions", _LOST] for flag, count in kept.items()]
    with contextlib.suppress(OSError), open("/proc/self/numa_maps") as lines:
        # the nearest node is what a process gets by default; OpenBLAS (numpy) asks for it
        if any(line.split()[1] not in ("default", "local") for line in lines):
            found.append(["setting", "policy of memory (mbind, set_mempolicy)", _LOST])
    return found


def _field(path: Path, name: str) -> str:
    with open(path) as lines:
        return next((line.split()[1] for line in lines if line.startswith(name)), "")


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
        "policy of scheduling": (os.sched_getscheduler(0), _LOST),
        "priority at the disk": (_call(libc, "ioprio_get", 1, 0), _LOST),
        "personality": (libc.personality(0xFFFFFFFF) & ~_NO_RANDOMIZE, _LOST),
        "dumpable": (libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0), _LOST),
        "barriers (membarrier)": (_call(libc, "membarrier", _REGISTRATIONS, 0, 0), _LOST),
        "keyring of the thread": (_call(libc, "keyctl", 0, -1, 0) > 0, _LOST),
        "keyring of the process": (_call(libc, "keyctl", 0, -2, 0) > 0, _LOST),
        "filter of system calls": (_field(Path("/proc/self/status"), "Seccomp_filters:"), _LOST),
        "RLIMIT_NOFILE": (resource.getrlimit(resource.RLIMIT_NOFILE)[1], _FATAL),
    }


def _call(libc: ctypes.CDLL, name: str, *arguments: int) -> int:
    """A system call that C has no function for; -1 where this machine's number is not known."""
    number = _NUMBERS[name].get(os.uname().machine)
    if number is None:
        return -1
    return int(libc.syscall(*map(ctypes.c_long, (number, *arguments))))


def _changed(began: Settings, now: Settings) -> Notes:
    return [["setting", name, why] for name, (value, why) in now.items() if value != began[name][0]]
