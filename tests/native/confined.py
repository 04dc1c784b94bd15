"""python confined.py FOLDER: confine this process, try everything, print what came of it."""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from kernel_runtime.executor.confine import confine

libc = ctypes.CDLL(None, use_errno=True)
folder = tempfile.mkdtemp(dir=sys.argv[1])
os.chdir(folder)
with open("file", "w") as file:
    file.write("contents")
reading = os.open("file", os.O_RDONLY)
listener = socket.create_server(("127.0.0.1", 0))
address = listener.getsockname()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
unconnected = socket.socket()
unbound = socket.socket(socket.AF_UNIX)
pair = socket.socketpair()
# ends with us, as nobody else can end it
other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
numbers = {
    "x86_64": {"io_uring_setup": 425, "shmget": 29, "clone3": 435, "openat2": 437, "ptrace": 101,
               "future": 470, "mq_open": 240, "add_key": 248, "bpf": 321, "sendmmsg": 307,
               "process_vm_writev": 311, "open_by_handle_at": 304, "fchmodat2": 452,
               "execveat": 322, "x32": 0x40000000 | 39},
    "aarch64": {"io_uring_setup": 425, "shmget": 194, "clone3": 435, "openat2": 437, "ptrace": 117,
                "future": 470, "mq_open": 180, "add_key": 217, "bpf": 280, "sendmmsg": 269,
                "process_vm_writev": 271, "open_by_handle_at": 265, "fchmodat2": 452,
                "execveat": 281, "x32": 0x40000000 | 39},
}[os.uname().machine]  # fmt: skip


def call(name: str, *arguments: int) -> None:
    """A system call that Python has no function for."""
    words = [ctypes.c_long(value) for value in (numbers[name], *arguments)]
    if libc.syscall(*words) < 0:
        raise OSError(ctypes.get_errno(), name)


def lock() -> None:
    fcntl.lockf(reading, fcntl.LOCK_SH | fcntl.LOCK_NB)


def set_flags() -> None:
    fcntl.ioctl(reading, 0x40086602, array.array("l", [0]))  # FS_IOC_SETFLAGS


REFUSED: dict[str, Callable[[], Any]] = {
    "socket": socket.socket,
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "connect": lambda: unconnected.connect(address),
    "connect unix": lambda: unbound.connect("\0nobody"),
    "bind": lambda: unconnected.bind(("127.0.0.1", 0)),
    "listen": unconnected.listen,
    "accept": listener.accept,
    "sendto": lambda: datagrams.sendto(b"x", address),
    "sendmsg": lambda: pair[0].sendmsg([b"x"]),
    "sendmmsg": lambda: call("sendmmsg", pair[0].fileno(), 0, 0, 0),
    "write": lambda: pathlib.Path("file").write_text("x"),
    "append": lambda: os.open("file", os.O_WRONLY | os.O_APPEND),
    "update": lambda: os.open("file", os.O_RDWR),
    "create": lambda: os.open("new", os.O_CREAT | os.O_RDONLY),
    "truncate at open": lambda: os.open("file", os.O_TRUNC),
    "unnamed": lambda: os.open(".", os.O_TMPFILE | os.O_RDWR),
    "own memory": lambda: os.open("/proc/self/mem", os.O_RDWR),
    "truncate": lambda: os.truncate("file", 0),
    "by handle": lambda: call("open_by_handle_at", -1, 0, 0),
    "unlink": lambda: os.unlink("file"),
    "rename": lambda: os.rename("file", "moved"),
    "link": lambda: os.link("file", "link"),
    "symlink": lambda: os.symlink("file", "link"),
    "mkdir": lambda: os.mkdir("new"),
    "rmdir": lambda: os.rmdir(folder),
    "mkfifo": lambda: os.mkfifo("fifo"),
    "chmod": lambda: os.chmod("file", 0o777),
    "fchmod": lambda: os.fchmod(reading, 0o777),
    "fchmodat2": lambda: call("fchmodat2", -100, 0, 0o777, 0),
    "chown": lambda: os.chown("file", -1, -1),
    "fchown": lambda: os.fchown(reading, -1, -1),
    "utime": lambda: os.utime("file"),
    "setxattr": lambda: os.setxattr("file", "user.x", b"x"),
    "removexattr": lambda: os.removexattr("file", "user.x"),
    "lock": lock,
    "flock": lambda: fcntl.flock(reading, fcntl.LOCK_SH),
    "flags of a file": set_flags,
    "kill": lambda: os.kill(other.pid, signal.SIGTERM),
    "kill group": lambda: os.kill(0, signal.SIGTERM),
    "kill all": lambda: os.kill(-1, 0),
    "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(other.pid), signal.SIGTERM),
    "ptrace": lambda: call("ptrace", 16, other.pid, 0, 0),
    "process_vm_writev": lambda: call("process_vm_writev", other.pid, 0, 0, 0, 0, 0),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "execveat": lambda: call("execveat", -1, 0, 0, 0, 0),
    "subprocess": lambda: subprocess.run(["/bin/true"]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "mount": lambda: check(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
    "unshare": lambda: check(libc.unshare(0x10000000)),
    "chroot": lambda: os.chroot("/"),
    "io_uring": lambda: call("io_uring_setup", 1, 0),
    "bpf": lambda: call("bpf", 0, 0, 0),
    "key": lambda: call("add_key", 0, 0, 0, 0, -1),
    "shmget": lambda: call("shmget", 0, 4096, 0o1600),
    "mq_open": lambda: call("mq_open", 0, 0o102, 0o600, 0),
    "limit of others": lambda: resource.prlimit(other.pid, resource.RLIMIT_NOFILE),
}
UNKNOWN: dict[str, Callable[[], Any]] = {
    "openat2": lambda: call("openat2", -100, 0, 0, 0),
    "clone3": lambda: call("clone3", 0, 0),
    "a call to come": lambda: call("future"),
    "x32": lambda: call("x32"),
}


def check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "refused")


def attempt(what: Callable[[], Any]) -> int | None:
    try:
        what()
    except OSError as error:
        return error.errno
    return None


def works() -> list[Any]:
    """What goes on as before."""
    memory = os.memfd_create("own")
    os.ftruncate(memory, 4096)
    os.dup2(memory, 50)
    with mmap.mmap(50, 4096) as mapped:
        mapped[:2] = b"ok"
    ends = socket.socketpair()
    ends[0].sendall(b"pair")
    pair[0].send(b"old pair")
    r, w = os.pipe()
    os.write(w, b"pipe")
    started: list[str] = []
    thread = threading.Thread(target=started.append, args=("thread",))
    thread.start()
    thread.join()
    got: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    os.isatty(0)
    return [
        os.pread(memory, 2, 0).decode(),
        ends[1].recv(9).decode(),
        pair[1].recv(9).decode(),
        os.read(r, 9).decode(),
        pathlib.Path("file").read_text(),
        started,
        len(got),
        os.listdir("."),
        bytes(mmap.mmap(-1, 4096)[:1]) == b"\0",
    ]


def main() -> None:
    go, in_thread = threading.Event(), []

    def before() -> None:
        go.wait()
        in_thread.append([attempt(socket.socket), attempt(os.fork)])

    thread = threading.Thread(target=before)
    thread.start()
    confine()
    go.set()
    thread.join()
    print(
        json.dumps(
            {
                "refused": {name: attempt(what) for name, what in REFUSED.items()},
                "unknown": {name: attempt(what) for name, what in UNKNOWN.items()},
                "thread": in_thread[0],
                "works": works(),
                "again": attempt(confine),
            }
        ),
    )


main()
