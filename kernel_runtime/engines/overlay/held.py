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
from dataclasses import field

from kernel_runtime import mappings
from kernel_runtime.later import dataclass

_LOCKED = 1 << 62

_STOP_S = 0.05
"""Seconds in which a stopped process shows as such; one that waits for a disk may take longer."""

_RUN_S = 5.0
"""The same for one that only waits for a processor: it may be in the middle of opening a file."""

_STOPPED = "TtZX"

_DELETED = b" (deleted)"


@dataclass(frozen=True)
class Written:
    """A regular file that some process may write to.

    mount: the id of the mount that it was opened in; 0 if that is not known (a mapping). path: as
    it is called there, relative to the root; in an older mount it does not follow renames.
    deleted: that name is gone, the file has others. identity: device and inode as seen there.
    """

    mount: int
    path: bytes
    deleted: bool = False
    identity: tuple[int, int] = (0, 0)


@dataclass
class Held:
    """What is held below one root."""

    written: set[Written] = field(default_factory=set)
    inside: list[str] = field(default_factory=list)
    """Processes other than the executor with a directory open: they create files beside it."""


def stop(pids: Sequence[int]) -> list[int]:
    """SIGSTOP to processes; return those that must be continued: not those that were stopped."""
    sent = []
    for pid in pids:
        if _state(pid) in _STOPPED:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
            sent.append(pid)
    began = time.monotonic()
    states = set().union(*map(_states, sent))
    # a thread that sleeps in the kernel so that no signal wakes it shows as D
    while states and time.monotonic() - began < (_RUN_S if states & {*"RS"} else _STOP_S):
        time.sleep(0.0002)
        states = set().union(*map(_states, sent))
    return sent


def go_on(pids: Iterable[int]) -> None:
    """SIGCONT to processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    """The states of its threads that have not stopped: each stops by itself (signal(7))."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    return {_state(f"{pid}/task/{thread}") for thread in threads} - {*_STOPPED}


def descendants(pid: int, proc: str = "/proc/") -> list[int]:
    """The pids of all processes below one that have not ended (proc(5), "children").

    proc: the sandbox's, with a slash at its end, for who is outside.
    """
    found: list[int] = []
    todo = [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"{proc}{one}/task"):
                with (
                    contextlib.suppress(OSError),
                    open(f"{proc}{one}/task/{thread}/children") as f,
                ):
                    todo += map(int, f.read().split())
        if one != pid and _state(one, proc) not in "ZX":
            found.append(one)
    return found


def _state(which: int | str, proc: str = "/proc/") -> str:
    try:
        with open(f"{proc}{which}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].split(None, 1)[0].decode()
    except OSError:
        return "X"


def look(
    mounts: dict[str, list[int]], others: Sequence[int], executor: int | None
) -> dict[str, Held]:
    """Look at processes; mounts: for each root the ids of its mounts, the present one last.

    The executor's directories do not count: it opens them again. Nor do directories in older
    mounts: what is made there is in no stack.
    """
    found = {root: Held() for root in mounts}
    if not found:
        return found
    namespace = os.readlink("/proc/self/ns/mnt")
    for pid in [*others, *([executor] if executor else [])]:
        is_executor = pid == executor
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.readlink(f"/proc/{pid}/ns/mnt") != namespace:
                for held in found.values():  # it has mounts of its own, whose ids say nothing
                    held.inside.append(_name(pid))
                continue
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    _descriptor(found, mounts, pid, number, is_executor)
            for root, path in _written_mappings(pid, mounts):
                found[root].written.add(Written(0, path))
            if not is_executor:
                for link in ("cwd", "root"):
                    _directory(found, mounts, pid, f"/proc/{pid}/{link}")
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
    found: dict[str, Held], mounts: dict[str, list[int]], pid: int, number: str, is_executor: bool
) -> None:
    link = f"/proc/{pid}/fd/{number}"
    path = os.fsencode(os.readlink(link))
    root = _root_of(path, mounts)
    if root is None:
        return
    flags, mount = _fdinfo(pid, number)
    if mount not in mounts[root]:
        return  # the workspace, or another mount within
    st = os.stat(link)
    if stat.S_ISDIR(st.st_mode):
        if not is_executor and mount == mounts[root][-1]:
            found[root].inside.append(_name(pid))
    elif (
        not is_executor
        and stat.S_ISREG(st.st_mode)
        and st.st_nlink
        and (flags & (os.O_ACCMODE | os.O_APPEND) == os.O_RDWR or flags & _LOCKED)
        and mount == mounts[root][-1]
    ):
        # a database or a lock file: locks of two mounts do not meet, so both must stay on one
        found[root].inside.append(_name(pid))
    elif stat.S_ISREG(st.st_mode) and flags & os.O_ACCMODE != os.O_RDONLY and st.st_nlink:
        deleted = path.endswith(_DELETED)
        identity = (st.st_dev, st.st_ino)
        found[root].written.add(Written(mount, _relative(path, root), deleted, identity))


def _fdinfo(pid: int, number: str) -> tuple[int, int]:
    """Flags and mount of a descriptor; _LOCKED is among the flags if it holds a lock."""
    flags = mount = 0
    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as f:
        for line in f:
            if line.startswith(b"flags:"):
                flags |= int(line.split()[1], 8)
            elif line.startswith(b"lock:"):
                flags |= _LOCKED
            elif line.startswith(b"mnt_id:"):
                mount = int(line.split()[1])
    return flags, mount


def _directory(found: dict[str, Held], mounts: dict[str, list[int]], pid: int, link: str) -> None:
    with contextlib.suppress(OSError):
        root = _root_of(os.fsencode(os.readlink(link)), mounts)
        if root is not None and mount_id(link) == mounts[root][-1]:
            found[root].inside.append(_name(pid))


def _written_mappings(pid: int, mounts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for mapping in mappings.shared(f"/proc/{pid}", writable=True):
        root = _root_of(mapping.path, mounts)
        if root is not None:
            yield root, _relative(mapping.path, root)


def _name(pid: int) -> str:
    return name_of(pid) or str(pid)


def name_of(pid: int, proc: str = "/proc/") -> str:
    """Id and name of a process in words; "" if it has ended."""
    if _state(pid, proc) in "ZX":
        return ""
    try:
        with open(f"{proc}{pid}/comm") as f:
            return f"{pid} ({f.read().strip()})"
    except OSError:
        return ""


def mount_id(path: str) -> int:
    """Return the id of the topmost mount at a path, as /proc/PID/fdinfo tells it."""
    fd = os.open(path, os.O_PATH)
    try:
        return _fdinfo(os.getpid(), str(fd))[1]
    finally:
        os.close(fd)
