"""python native_world.py KIND CONTROL_FD PROGRAM...: where a target runs, and its small init.

KIND: plain (no namespace), root (pid and mount namespace), user (user, pid and mount namespace,
with CAP_CHECKPOINT_RESTORE for the target). Prefix "as-UID:" to become an ordinary user first.
The init reaps whatever ends. Over CONTROL_FD it is told, one JSON object each: {"kill": pid}
(answers when the process is reaped), {"spawn": [...]} with descriptors for link, out and err,
{"mount": [source, target, kind or "", data]}, {"unmount": target}.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from typing import Any

NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
BIND, DETACH = 0x1000, 2
CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE = 21, 40
PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 36, 47
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def enter(kind: str) -> None:
    """Make the namespaces; returns in the process that is pid 1 of them."""
    uid, gid = os.getuid(), os.getgid()
    flags = NEWNS | NEWPID | (NEWUSER if kind == "user" else 0)
    check(libc.unshare(flags), "unshare")
    if kind == "user":
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    child = os.fork()
    if child:
        os.close(int(sys.argv[2]))
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    check(libc.prctl(1, signal.SIGKILL, 0, 0, 0), "pdeathsig")
    check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None), "mount private")
    check(libc.mount(b"proc", b"/proc", b"proc", 0, None), "mount proc")
    if kind == "user":
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)()
        check(libc.capget(header, data), "capget")
        data[2], data[5] = data[1], data[4]
        check(libc.capset(header, data), "capset")
        check(libc.prctl(PR_CAP_AMBIENT, 2, CAP_CHECKPOINT_RESTORE, 0, 0), "ambient")


def spawn(argv: list[str], fds: list[int]) -> int:
    """Start a target: link at 3, out at 1, err at 2."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in zip((3, 1, 2), [os.dup(fd) for fd in fds]):
            os.dup2(fd, number)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.closerange(4, 1024)
        os.execv(argv[0], argv)
    finally:
        os._exit(127)


def reap(waited: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        waited[pid] = status


def kill_children() -> None:
    """End everything that we are the parent of, frozen processes too."""
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        for pid in f.read().split():
            os.kill(int(pid), signal.SIGKILL)


def main() -> None:
    kind, control = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    if kind.startswith("as-"):
        user, kind = kind[3:].split(":")
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
        check(libc.prctl(4, 1, 0, 0, 0), "dumpable")
    if kind != "plain":
        enter(kind)
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    ended: dict[int, int] = {}
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    waiting: int | None = None
    poll = select.poll()
    poll.register(wake_read, select.POLLIN)
    poll.register(control, select.POLLIN)

    def reply(value: Any) -> None:
        control.send(json.dumps(value).encode())

    reply("ready")
    while True:
        events = dict(poll.poll())
        if wake_read in events:
            os.read(wake_read, 4096)
            reap(ended)
        if waiting is not None and waiting in ended:
            reply(os.waitstatus_to_exitcode(ended.pop(waiting)))
            waiting = None
        if control.fileno() not in events:
            continue
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 8)
        if not data:
            kill_children()
            os._exit(0)
        request = json.loads(data)
        if "spawn" in request:
            reply(spawn(request["spawn"], list(fds)))
        elif "kill" in request:
            pid = request["kill"]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, request.get("signal", signal.SIGKILL))
            if request.get("signal", signal.SIGKILL) != signal.SIGKILL:
                reply(0)
            elif pid in ended or not os.path.exists(f"/proc/{pid}"):
                reply(os.waitstatus_to_exitcode(ended.pop(pid, 0)))
            else:
                waiting = pid
                reap(ended)
                if pid in ended:
                    reply(os.waitstatus_to_exitcode(ended.pop(pid)))
                    waiting = None
        elif "mount" in request:
            source, target, kind, data = (text.encode() for text in request["mount"])
            failed = libc.mount(source, target, kind, 0 if kind else BIND, data)
            reply(ctypes.get_errno() if failed else 0)
        elif "unmount" in request:
            failed = libc.umount2(request["unmount"].encode(), DETACH)
            reply(ctypes.get_errno() if failed else 0)
        elif "pids" in request:
            reply([int(name) for name in os.listdir("/proc") if name.isdigit()])
        for fd in fds:
            os.close(fd)


main()
