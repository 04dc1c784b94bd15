"""The processes of a session, as the host sees them. Any of them may end while it is looked at."""

import contextlib
import time
from typing import NamedTuple

import psutil


class Seen(NamedTuple):
    """A process as it was a moment ago; a zombie has no command line."""

    process: psutil.Process
    name: str
    command: str


def below(pid: int, *, recursive: bool = True) -> list[Seen]:
    """All processes below the supervisor of that pid, or its children only."""
    found = []
    for process in psutil.Process(pid).children(recursive=recursive):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of these, too
            found.append(Seen(process, process.name(), " ".join(process.cmdline())))
    return found


def executor_of(pid: int) -> psutil.Process:
    """The live process. Raises AssertionError: in the middle of a restore there is none.

    Frozen ones, copies and writers of images have names of their own.
    """
    for seen in below(pid):
        if not seen.name.startswith("tt-") and "boot.py" in seen.command:
            return seen.process
    raise AssertionError("no executor")


def init_of(pid: int) -> psutil.Process:
    """The process that made the sandbox: process 1 in it, where there is a pid namespace.

    What it forks has its command line: for a work of its own, or until another program is executed.
    """
    children = below(pid, recursive=False)
    (found,) = (seen.process for seen in children if "init.main" in seen.command)
    return found


def frozen_of(pid: int) -> list[psutil.Process]:
    """The frozen processes, one for each checkpoint that has one."""
    return [seen.process for seen in below(pid) if seen.name == "tt-frozen"]


def wait_for_no_zombies(pid: int) -> None:
    """Until every process below the supervisor that has ended is reaped."""
    end = time.monotonic() + 60
    while zombies := [p for p in psutil.Process(pid).children(recursive=True) if _is_zombie(p)]:
        assert time.monotonic() < end, zombies
        time.sleep(0.05)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
