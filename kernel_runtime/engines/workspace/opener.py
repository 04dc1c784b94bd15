"""Opens files that their owner may not read: run as a process of its own, by access.py.

A user may chmod a file of theirs to 000 and cannot read it until they chmod it back. In a user
namespace of its own, with the user's id mapped to itself, this process has CAP_DAC_OVERRIDE
over exactly the files that the user (and the user's main group) owns. It opens what it is
asked for, read only, and passes the descriptor back; the file itself is not touched.

Protocol, on a SOCK_SEQPACKET socket: request is 4 bytes of flags and a name, with one
descriptor, the directory. Reply is 4 bytes of errno, with one descriptor if that is 0. First
the process sends such a reply without a descriptor: whether it could be set up.

Runs with `python -I -S`: it imports nothing of this project.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys

_CLONE_NEWUSER = 0x10000000


def _enter_namespace() -> int:
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER):
        return ctypes.get_errno() or errno.EPERM
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
            try:
                os.write(fd, text.encode("ascii"))
            finally:
                os.close(fd)
    except OSError as cause:
        return cause.errno or errno.EPERM
    return 0


def _serve(link: socket.socket) -> None:
    allowed = os.O_PATH | os.O_DIRECTORY | os.O_NOATIME | os.O_NONBLOCK
    fixed = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        request, fds, _, _ = socket.recv_fds(link, 4096, 1)
        if not request or not fds:
            return
        flags = struct.unpack_from("=i", request)[0] & allowed
        try:
            opened = os.open(request[4:], flags | fixed, dir_fd=fds[0])
        except OSError as cause:
            link.send(struct.pack("=i", cause.errno or errno.EIO))
        else:
            socket.send_fds(link, [struct.pack("=i", 0)], [opened])
            os.close(opened)
        finally:
            os.close(fds[0])


def main() -> None:
    """Serve the socket whose number is the first argument until it is closed."""
    link = socket.socket(fileno=int(sys.argv[1]))
    failed = _enter_namespace()
    link.send(struct.pack("=i", failed))
    if not failed:
        _serve(link)


if __name__ == "__main__":
    main()
