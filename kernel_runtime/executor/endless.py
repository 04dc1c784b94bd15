"""Under DMTCP: sockets with which a checkpoint would not end, or would end the process.

DMTCP 5.0 empties each connection before it writes, by a word that its other end, under DMTCP too,
sends back. For an end that is elsewhere it waits for ever; likewise for a datagram socket that was
connected. A Unix socket of whole messages (SOCK_SEQPACKET) of which one end is shut or closed ends
the process. So these are looked for before, in this process and for TCP in its children, too; a
checkpoint is refused then and the session goes on (docs/dmtcp.md).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"
_CREDENTIALS: Final = struct.Struct("3i")
_NAME_SERVICE: Final = 53  # DMTCP leaves connections to it alone


DMTCPS: Final = range(820, 1024)
"""Descriptors that DMTCP takes for itself (PROTECTED_FD_START of its source is 820)."""


def sockets(own: Container[int]) -> list[str]:
    """In words. own: descriptors to leave out, the kernel's."""
    found = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        if fd in own:
            continue
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue  # it would not take over a copy of another descriptor, nor close it
            with socket.socket(fileno=os.dup(fd)) as one:
                if why := _reason(one):
                    found.append(f"descriptor {fd} ({why})")
    return found + list(_elsewhere())


def _reason(one: socket.socket) -> str:
    kind = one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    peer = one.getpeername()  # OSError: it is not connected
    if one.family in (socket.AF_INET, socket.AF_INET6):
        is_datagram = kind == socket.SOCK_DGRAM and peer[1] != _NAME_SERVICE
        return "a datagram socket that is connected" if is_datagram else ""
    if one.family != socket.AF_UNIX:
        return ""
    if kind == socket.SOCK_DGRAM:
        return "a datagram socket that is connected" if peer else ""
    if kind == socket.SOCK_SEQPACKET:
        look = select.poll()
        look.register(one, select.POLLRDHUP)
        if any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in look.poll(0)):
            return "a Unix socket of whole messages whose other end is shut"
    credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[0] == 0:  # of another pid namespace
        return "a Unix socket that is connected to another program"
    return ""


def _elsewhere() -> Iterator[str]:
    """Connections over TCP, of any process in here, whose other end is not in here."""
    rows = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}") as lines:
            next(lines)
            for words in map(str.split, lines):
                if words[3] == _ESTABLISHED:
                    rows[_plain(words[1]), _plain(words[2])] = words[9]
    inside = _inodes() if rows else set()
    for (here, there), inode in rows.items():
        if inode in inside and rows.get((there, here)) not in inside:
            port = int(there.rpartition(":")[2], 16)
            if port != _NAME_SERVICE:
                yield f"a connection over TCP to another program, at port {port}"


def _plain(address: str) -> str:
    """IPv4 within IPv6 as IPv4 alone, as the other end may have it."""
    host, _, port = address.rpartition(":")
    return f"{host.removeprefix('0000000000000000FFFF0000')}:{port}"


def _inodes() -> set[str]:
    """Of the sockets of all processes that can be seen: those of the sandbox."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for fd in (process / "fd").iterdir():
                if int(fd.name) in DMTCPS:
                    continue
                with contextlib.suppress(OSError):
                    found.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
    return found
