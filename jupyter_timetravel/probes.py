"""Try one ability of the machine for real, in a process of its own: ``python -m … NAME``.

A namespace that was entered cannot be left, and a refused system call may end in a signal, so each
probe runs in a child that prints one line of JSON and is gone: ``{"error": 0}``, or the errno, its
text and the step that was refused. Called by jupyter_timetravel.checks only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from kernel_runtime import linux
from kernel_runtime.sandbox import init

SYS_CLONE3 = 435  # the same on every architecture
SYS_KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_FILE = 0
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR = 2
NLM_F_REQUEST = 1
UDIAG_SHOW_PEER = 4
SIGCHLD = 17
TIMEOUT_S = 20


class Outcome(NamedTuple):
    """What a probe found: errno 0 is success."""

    error: int
    step: str = ""
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.error == 0

    def __str__(self) -> str:
        return "works" if self.ok else f"{self.step}: {self.text}"


def run(name: str) -> Outcome:
    """Run a probe in a child process and return what it found. Never raises."""
    command = [sys.executable, "-m", __name__, name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd="/"
        )
        return Outcome(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Outcome(errno.ETIMEDOUT, name, f"no answer within {TIMEOUT_S} s")
    except (OSError, ValueError, TypeError) as error:
        return Outcome(errno.EIO, name, f"the probe itself failed: {error}")


class _Refused(Exception):
    def __init__(self, step: str, error: OSError) -> None:
        self.outcome = Outcome(error.errno or errno.EIO, step, os.strerror(error.errno or 0))


def _try(step: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise _Refused(step, error) from error


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def user_namespace() -> None:
    """A user namespace in which this uid and gid are mapped. user_namespaces(7)."""
    uid, gid = os.geteuid(), os.getegid()
    _try("unshare(CLONE_NEWUSER)", lambda: linux.unshare(linux.CLONE_NEWUSER))
    _try("setgroups", lambda: _write("/proc/self/setgroups", "deny"))
    _try("uid_map", lambda: _write("/proc/self/uid_map", f"{uid} {uid} 1"))
    _try("gid_map", lambda: _write("/proc/self/gid_map", f"{gid} {gid} 1"))


def _in_pid_namespace(action: Callable[[], None]) -> None:
    """Run an action as process 1 of new pid and mount namespaces."""
    flags = linux.CLONE_NEWPID | linux.CLONE_NEWNS
    if os.geteuid() != 0:
        user_namespace()
        _try("unshare(CLONE_NEWPID)", lambda: linux.unshare(flags))
    else:
        _try("unshare(CLONE_NEWPID)", lambda: _unshare_as_root(flags))
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report(action, write_end)
        os._exit(0)
    os.close(write_end)
    with open(read_end) as pipe:
        outcome = Outcome(**json.loads(pipe.read()))
    os.waitpid(pid, 0)
    if not outcome.ok:
        raise _Refused(outcome.step, OSError(outcome.error, outcome.text))


def _unshare_as_root(flags: int) -> None:
    """As a kernel does it: where root may not mount, in a user namespace of its own."""
    try:
        linux.unshare(flags)
    except OSError as error:
        try:
            init.enter_with_all_ids(flags)
        except init.Refused:
            raise error from None


def sandbox() -> None:
    """Process 1 of a pid namespace, with a /proc of its own."""

    def action() -> None:
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        private = linux.MS_REC | linux.MS_PRIVATE
        _try("mount(private)", lambda: linux.mount("none", "/", None, private))
        _try("mount(proc)", lambda: linux.mount("proc", "/proc", "proc", flags))

    _in_pid_namespace(action)


class _CloneArgs(ctypes.Structure):
    """struct clone_args of clone(2)."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack"),
            *("stack_size", "tls", "set_tid", "set_tid_size", "cgroup"),
        )
    )


def _syscall(number: int, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def set_tid() -> None:
    """A process with a chosen pid: clone3(2) with set_tid, in a pid namespace of our own."""

    def action() -> None:
        wanted = ctypes.c_int(4242)
        args = _CloneArgs(exit_signal=SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)

        def clone() -> None:
            pid = _syscall(SYS_CLONE3, ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            if pid != wanted.value:
                raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))

        _try("clone3(set_tid)", clone)

    _in_pid_namespace(action)


def kcmp() -> None:
    """Say whether two descriptors share one open file. kcmp(2)."""
    number = SYS_KCMP.get(platform.machine())
    if number is None:
        raise _Refused("kcmp", OSError(errno.ENOSYS, ""))
    twin = os.dup(1)
    pid = ctypes.c_int(os.getpid())
    fds = (ctypes.c_ulong(1), ctypes.c_ulong(twin))
    _try("kcmp", lambda: _syscall(number, pid, pid, ctypes.c_int(KCMP_FILE), *fds))


def unix_diag() -> None:
    """Find the other end of a socket pair. sock_diag(7)."""

    def ask() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, socket.socket(16, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(5)
            inode = os.fstat(ours.fileno()).st_ino
            anything = 0xFFFF_FFFF
            request = struct.pack(
                "=BBHIIIII", socket.AF_UNIX, 0, 0, anything, inode, UDIAG_SHOW_PEER, anything,
                anything,
            )  # fmt: skip
            kind, flags = SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST
            head = struct.pack("=IHHII", 16 + len(request), kind, flags, 1, 0)
            netlink.send(head + request)
            answer = netlink.recv(8192)
            if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
                number = -struct.unpack_from("=i", answer, 16)[0]
                raise OSError(number, os.strerror(number))

    _try("sock_diag", ask)


def clone3_allowed() -> None:
    """Whether clone3(2) exists here: a call with no arguments must be refused as invalid."""
    try:
        _syscall(SYS_CLONE3, None, ctypes.c_size_t(0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise _Refused("clone3", error) from error


def inotify() -> None:
    """One more inotify instance, with a watch. inotify(7)."""
    libc = ctypes.CDLL(None, use_errno=True)

    def watch() -> None:
        instance = libc.inotify_init1(0)
        if instance < 0 or libc.inotify_add_watch(instance, b"/", 0x100) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    _try("inotify", watch)


PROBES: dict[str, Callable[[], None]] = {
    probe.__name__: probe
    for probe in (user_namespace, sandbox, set_tid, kcmp, unix_diag, clone3_allowed, inotify)
}


def _report(action: Callable[[], None], fd: int) -> None:
    try:
        action()
        outcome = Outcome(0)
    except _Refused as refused:
        outcome = refused.outcome
    os.write(fd, json.dumps(outcome._asdict()).encode())


if __name__ == "__main__":
    _report(PROBES[sys.argv[1]], 1)
