"""Looking at files relative to an open directory, never by a joined path.

Each call names one component below a directory descriptor and follows no symlink, so nothing
outside of the tree can be reached. What the user owns but may not read (mode 000) is opened by
a helper process (opener.py), started at the first such refusal. No mode is ever changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace import linux

_READ: Final = os.O_RDONLY | linux.O_CLOEXEC | linux.O_NOFOLLOW
_HELPER_START_S: Final = 60.0


class Access:
    """Read access to a tree. Not thread safe; close() ends the helper process."""

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self.helper_refused = ""
        """Why there is no helper, if it was needed and could not be had."""

    def open_dir(self, dir_fd: int, name: bytes) -> int:
        """Open a directory for listing. Raises OSError; ENOTDIR or ELOOP for a symlink."""
        return self._open(dir_fd, name, linux.O_DIRECTORY)

    def open_file(self, dir_fd: int, name: bytes) -> int:
        """Open a file for reading; does not block on a fifo put in its place."""
        return self._open(dir_fd, name, os.O_NONBLOCK)

    def lstat(self, dir_fd: int, name: bytes) -> os.stat_result:
        """lstat(2), also in a directory that the owner may not search."""
        try:
            return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except PermissionError as cause:
            fd = self._by_helper(dir_fd, name, linux.O_PATH, cause)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def readlink(self, dir_fd: int, name: bytes) -> bytes:
        """The target of a symlink, byte for byte."""
        try:
            return os.readlink(name, dir_fd=dir_fd)
        except PermissionError as cause:
            fd = self._by_helper(dir_fd, name, linux.O_PATH, cause)
        try:
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """End the helper process, if there is one."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._helper is not None:
            self._helper.wait()
            self._helper = None

    def _open(self, dir_fd: int, name: bytes, flags: int) -> int:
        try:
            return os.open(name, _READ | linux.O_NOATIME | flags, dir_fd=dir_fd)
        except PermissionError as cause:
            # Only the owner may ask for O_NOATIME.
            if cause.errno == errno.EPERM:
                with contextlib.suppress(PermissionError):
                    return os.open(name, _READ | flags, dir_fd=dir_fd)
            return self._by_helper(dir_fd, name, flags, cause)

    def _by_helper(self, dir_fd: int, name: bytes, flags: int, refused: OSError) -> int:
        """Ask the helper; raise the first refusal if it cannot help either."""
        link = self._connected()
        if link is None:
            raise refused
        try:
            socket.send_fds(link, [struct.pack("=i", flags) + name], [dir_fd])
            _reply, fds, _, _ = socket.recv_fds(link, 4, 1)
        except OSError as cause:
            self.helper_refused = f"the helper process ended: {cause.strerror}"
            self.close()
            raise refused from cause
        if not fds:
            raise refused
        return fds[0]

    def _connected(self) -> socket.socket | None:
        if self._link is not None or self.helper_refused or os.geteuid() == 0:
            return self._link
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("opener.py")
        ours.settimeout(_HELPER_START_S)
        try:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
            theirs.close()
            reply = ours.recv(4)
            failed = struct.unpack("=i", reply)[0] if reply else errno.EPIPE
        except OSError as cause:
            failed = cause.errno or errno.EIO
        if failed:
            self.helper_refused = f"no user namespace: {os.strerror(failed)}"
            self._link = ours
            self.close()
            return None
        self._link = ours
        return ours


def list_xattrs(fd: int | str) -> tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]:
    """Extended attributes of an open file (or a path), sorted; names of those unreadable.

    user.*, POSIX ACLs, and what else this user is shown, except security labels that the
    kernel sets by itself (security.selinux and the like).
    """
    try:
        names = os.listxattr(fd)
    except OSError:
        return (), ()
    found: list[tuple[str, bytes]] = []
    refused: list[str] = []
    for name in sorted(names):
        if name.startswith("security.") and name != "security.capability":
            continue
        try:
            found.append((name, os.getxattr(fd, name)))
        except OSError:
            refused.append(name)
    return tuple(found), tuple(refused)
