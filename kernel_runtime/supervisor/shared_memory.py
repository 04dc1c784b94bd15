"""Files in the sandbox's /dev/shm that no checkpoint holds: those that the process has not mapped.

What the process has mapped or open is part of its memory (docs/native.md). What it has only left
there by name is in a tmpfs of the sandbox, which is neither part of the environment nor copied.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from kernel_runtime import mappings
from kernel_runtime.timeline.model import Note

KIND = "shared memory"
_SHOWN = 10


def unheld(proc: Callable[[int], str], executor: int) -> list[Note]:
    """Name them. proc: the /proc directory of a process in the sandbox, whose init is 1.

    executor: its pid, or 0 if it is gone; then nothing is known.
    """
    if not executor:
        return []
    directory = f"{proc(1)}/root/dev/shm"
    names: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        names = {entry.name: entry.inode() for entry in entries}
    if not names:
        return []
    held, inodes = _held(proc(executor))
    left = [
        name
        for name, inode in sorted(names.items())
        if f"/dev/shm/{name}" not in held and inode not in inodes
    ]
    notes = [
        Note(KIND, f"/dev/shm/{name}", "the process has not mapped it, so its content is not held")
        for name in left[:_SHOWN]
    ]
    if len(left) > _SHOWN:
        notes.append(Note(KIND, f"{len(left) - _SHOWN} more", "likewise"))
    return notes


def drop_semaphores(proc: Callable[[int], str]) -> None:
    """Delete the names of semaphores (``sem.*``, sem_overview(7)) when no process lives inside.

    Nobody has one open then: what deletes their names, such as multiprocessing's tracker, has been
    ended too, and a process that is woken makes its own anew. Other files may hold somebody's data.
    """
    directory = f"{proc(1)}/root/dev/shm"
    with contextlib.suppress(OSError):
        if os.stat(directory).st_dev == os.stat("/dev/shm").st_dev:
            return  # the machine's own
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("sem.")]
        for name in names:
            os.unlink(f"{directory}/{name}")


def _held(proc: str) -> tuple[set[str], set[int]]:
    """Paths, and inodes of what is mapped: a semaphore was opened by a name that is deleted."""
    found: set[str] = set()
    inodes: set[int] = set()
    with contextlib.suppress(OSError):
        for mapping in mappings.shared(proc):
            if mapping.path.startswith(b"/dev/shm/"):
                found.add(os.fsdecode(mapping.path))
                inodes.add(mapping.inode)
        for number in os.listdir(f"{proc}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{proc}/fd/{number}"))
    return found, inodes
