"""What the sandbox's processes hold of an environment's mounts, and stopping them meanwhile.

Runs in the sandbox's init. A process keeps what it has opened before a capture: it points into
the layer that has just been frozen. The executor opens its own things again; the other processes
cannot be asked, so they are looked at in /proc (proc(5)).
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_STOP_S = 0.05
"""Seconds in which a stopped process shows as such; one that waits for a disk may take longer."""


@dataclass
class Held:
    """What is held below one root."""

    written: set[bytes] = field(default_factory=set)
    """Paths, relative to the root, of regular files that some process may write to."""
    inside: list[str] = field(default_factory=list)
    """Processes other than the executor with a directory open: they create files beside it."""


def stop(pids: Sequence[int]) -> list[int]:
    """SIGSTOP to processes; return those that must be continued: not those that were stopped."""
    sent = []
    for pid in pids:
        if _state(pid) in "TtZX":
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
            sent.append(pid)
    end = time.monotonic() + _STOP_S
    waiting = list(sent)
    while waiting and time.monotonic() < end:
        waiting = [pid for pid in waiting if _state(pid) not in "TtZX"]
        if waiting:
            time.sleep(0.0002)
    return sent


def go_on(pids: Iterable[int]) -> None:
    """SIGCONT to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split(None, 1)[0].decode()
    except OSError:
        return "X"


def look(
    mounts: dict[str, set[int]], others: Sequence[int], executor: int | None
) -> dict[str, Held]:
    """Look at processes; mounts: for each root the ids of its mounts, the present one included.

    The executor's directories do not count: it opens them again.
    """
    found = {root: Held() for root in mounts}
    if not found:
        return found
    for pid in [*others, *([executor] if executor else [])]:
        is_executor = pid == executor
        with contextlib.suppress(OSError):  # it ended meanwhile
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    _descriptor(found, mounts, pid, number, is_executor)
            for root, path in _written_mappings(pid, mounts):
                found[root].written.add(path)
            if not is_executor:
                _directory(found, mounts, pid, f"/proc/{pid}/cwd")
    return found


def _root_of(path: bytes, mounts: Iterable[str]) -> str | None:
    best = None
    for root in mounts:
        prefix = os.fsencode(root)
        if (path == prefix or path.startswith(prefix.rstrip(b"/") + b"/")) and (
            best is None or len(root) > len(best)
        ):
            best = root
    return best


def _relative(path: bytes, root: str) -> bytes:
    return path[len(os.fsencode(root)) :].lstrip(b"/")


def _descriptor(
    found: dict[str, Held], mounts: dict[str, set[int]], pid: int, number: str, is_executor: bool
) -> None:
    link = f"/proc/{pid}/fd/{number}"
    path = os.fsencode(os.readlink(link))
    if not path.startswith(b"/") or path.endswith(b" (deleted)"):
        return
    root = _root_of(path, mounts)
    if root is None:
        return
    flags, mount = _fdinfo(pid, number)
    if mount not in mounts[root]:
        return  # the workspace, or another mount within
    mode = os.stat(link).st_mode
    if stat.S_ISDIR(mode):
        if not is_executor:
            found[root].inside.append(_name(pid))
    elif stat.S_ISREG(mode) and flags & os.O_ACCMODE != os.O_RDONLY:
        found[root].written.add(_relative(path, root))


def _fdinfo(pid: int, number: str) -> tuple[int, int]:
    flags = mount = 0
    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as f:
        for line in f:
            if line.startswith(b"flags:"):
                flags = int(line.split()[1], 8)
            elif line.startswith(b"mnt_id:"):
                mount = int(line.split()[1])
    return flags, mount


def _directory(found: dict[str, Held], mounts: dict[str, set[int]], pid: int, link: str) -> None:
    with contextlib.suppress(OSError):
        root = _root_of(os.fsencode(os.readlink(link)), mounts)
        if root is not None and mount_id(link) in mounts[root]:
            found[root].inside.append(_name(pid))


def _written_mappings(pid: int, mounts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    with open(f"/proc/{pid}/maps", "rb") as f:
        text = f.read()
    if b"rw-s" not in text and b"-w-s" not in text:
        return
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][1:2] == b"w" and fields[1][3:4] == b"s":
            path = fields[5]
            root = _root_of(path, mounts)
            if root is not None and not path.endswith(b" (deleted)"):
                yield root, _relative(path, root)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f"{pid} ({f.read().strip()})"
    except OSError:
        return str(pid)


def mount_id(path: str) -> int:
    """Return the id of the topmost mount at a path, as /proc/PID/fdinfo tells it."""
    fd = os.open(path, os.O_PATH)
    try:
        return _fdinfo(os.getpid(), str(fd))[1]
    finally:
        os.close(fd)
