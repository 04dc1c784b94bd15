"""A coordinator that nobody but its own user can reach. A program: ``python -I -S guard.py``.

DMTCP's coordinator listens on every interface and obeys whoever connects. So it is started in a
network namespace of its own, where only this process is, and this process lets connections in from
a port on 127.0.0.1 of the host's: those whose other end belongs to the same user. Whose it is, the
kernel says in /proc/net/tcp.

Argument: a JSON object {"argv": the coordinator's, "port": wanted or 0, "port_file": path}.
Answers one line of JSON on standard output: {"port": n, "inner_port": n, "coordinator": pid} or
{"error": text, "step": name}. Ends, and the coordinator with it, when standard input does; ends
with the coordinator's exit status when that ends first.

Standard library only, and nothing of this package: it is started in its own interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any, NoReturn

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16
HELD_MOST = 1 << 20
"""Bytes that one end may be behind before the other is not read any more."""
START_S = 15.0


class Refused(Exception):
    """A step was refused by the system."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error.strerror or error}")
        self.step = step


def enter_network_namespace() -> None:
    """Go where no other process is. An ordinary user needs a user namespace for that."""
    libc = ctypes.CDLL(None, use_errno=True)

    def unshare(flags: int) -> int:
        return 0 if libc.unshare(flags) == 0 else ctypes.get_errno()

    code = unshare(CLONE_NEWNET)
    if code == errno.EPERM:
        uid, gid = os.geteuid(), os.getegid()
        code = unshare(CLONE_NEWUSER | CLONE_NEWNET)
        if code == 0:
            maps = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"))
            for name, text in (*maps, ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    if code:
        raise Refused("a network namespace", OSError(code, os.strerror(code)))


def raise_loopback() -> None:
    """A new network namespace's loopback interface is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, name))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def start(argv: list[str], port_file: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the coordinator; return it and the port that it took."""
    libc = ctypes.CDLL(None)
    # it reads commands from its standard input, and never stops to look at one that has ended
    quiet, _kept_open = os.pipe()
    process = subprocess.Popen(
        argv,
        stdin=quiet,
        stdout=sys.stderr.fileno(),
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    os.close(quiet)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError), open(port_file) as file:
            return process, int(file.read())
        if process.poll() is not None:
            break
        time.sleep(0.005)
    process.kill()
    process.wait()
    raise Refused("dmtcp_coordinator", OSError(errno.ECHILD, "it ended or names no port"))


def owner(table: int, peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The user at the other end of a connection on this machine; None if it is not to be seen.

    table: /proc/net/tcp of the network namespace in question, which is read anew each time.
    """
    wanted = [_address(*peer), _address(*here)]
    os.lseek(table, 0, os.SEEK_SET)
    with open(os.dup(table), encoding="ascii") as lines:
        next(lines, None)
        for line in lines:
            fields = line.split()
            if fields[1:3] == wanted:
                return int(fields[7])
    return None


def _address(host: str, port: int) -> str:
    """As in /proc/net/tcp: the address as the processor has it in memory."""
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"


class Pair:
    """A connection let in, and the one to the coordinator that it is joined to."""

    def __init__(self, outer: socket.socket, inner: socket.socket) -> None:
        self.other = {outer: inner, inner: outer}
        self.held = {outer: bytearray(), inner: bytearray()}
        """What is still to be written to each."""
        self.ended = {outer: False, inner: False}
        """Whose reading has ended."""


class Guard:
    """Passes bytes between the host's loopback and the coordinator's."""

    def __init__(self, listener: socket.socket, table: int, inner_port: int) -> None:
        self._listener = listener
        self._table = table
        self._inner = (LOOPBACK, inner_port)
        self._uid = os.geteuid()
        self._selector = selectors.DefaultSelector()
        self.refused = 0

    def run(self, coordinator: subprocess.Popen[bytes]) -> int:
        """Serve until standard input or the coordinator ends; return an exit status."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        ended = os.pidfd_open(coordinator.pid) if hasattr(os, "pidfd_open") else None
        if ended is not None:
            self._selector.register(ended, selectors.EVENT_READ)
        while coordinator.poll() is None:
            for key, mask in self._selector.select(None if ended is not None else 0.2):
                if key.fileobj == 0:
                    if not os.read(0, CHUNK):
                        coordinator.kill()
                        coordinator.wait()
                        return 0
                elif key.fileobj is self._listener:
                    self._let_in()
                elif key.data is not None:
                    self._pass(key.data, key.fileobj, mask)
        return coordinator.returncode & 0xFF

    def _let_in(self) -> None:
        try:
            outer, peer = self._listener.accept()
        except OSError:
            return
        here = outer.getsockname()
        if owner(self._table, peer, here) != self._uid:
            self.refused += 1
            outer.close()
            return
        inner = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            inner.connect(self._inner)
        except OSError:
            outer.close()
            inner.close()
            return
        pair = Pair(outer, inner)
        for one in (outer, inner):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, pair)

    def _pass(self, pair: Pair, one: Any, mask: int) -> None:
        if one not in pair.other:
            return  # closed by an event before this one
        try:
            if mask & selectors.EVENT_READ:
                data = one.recv(CHUNK)
                if data:
                    pair.held[pair.other[one]] += data
                else:
                    pair.ended[one] = True
            for end, held in pair.held.items():
                if held:
                    with contextlib.suppress(BlockingIOError):
                        del held[: end.send(held)]
                if not held and pair.ended[pair.other[end]]:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._close(pair)
            return
        if all(pair.ended.values()) and not any(pair.held.values()):
            self._close(pair)
        else:
            self._watch(pair)

    def _watch(self, pair: Pair) -> None:
        for end in pair.other:
            wanted = 0
            if not pair.ended[end] and len(pair.held[pair.other[end]]) < HELD_MOST:
                wanted |= selectors.EVENT_READ
            if pair.held[end]:
                wanted |= selectors.EVENT_WRITE
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            if wanted:
                self._selector.register(end, wanted, pair)

    def _close(self, pair: Pair) -> None:
        for end in pair.other:
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            end.close()
        pair.other.clear()


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> NoReturn:
    """See the module."""
    wanted = json.loads(sys.argv[1])
    try:
        # both of the host's: a namespace that is entered later does not change them
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # connections of a coordinator that has died linger
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, wanted["port"]))
        except OSError as error:
            raise Refused(f"port {wanted['port']}", error) from error
        listener.listen(128)
        table = os.open("/proc/self/net/tcp", os.O_RDONLY | os.O_CLOEXEC)
        enter_network_namespace()
        raise_loopback()
        coordinator, inner_port = start(wanted["argv"], wanted["port_file"])
    except Refused as refused:
        say(error=str(refused), step=refused.step)
        sys.exit(1)
    except OSError as error:
        say(error=str(error), step="start")
        sys.exit(1)
    say(port=listener.getsockname()[1], inner_port=inner_port, coordinator=coordinator.pid)
    sys.exit(Guard(listener, table, inner_port).run(coordinator))


if __name__ == "__main__":
    main()
