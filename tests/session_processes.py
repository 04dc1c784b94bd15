"""The processes of a session, as the host sees them. Any of them may end while it is looked at."""

import contextlib
from typing import NamedTuple

import psutil

from tests.waiting import until


class Seen(NamedTuple):
    """A process as it was a moment ago; a zombie has no command line."""

    process: psutil.Process
    name: str
    command: str
    since: float


def below(pid: int) -> list[Seen]:
    """All processes below the supervisor of that pid."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of these, too
            command = " ".join(process.cmdline())
            found.append(Seen(process, process.name(), command, process.create_time()))
    return found


def executor_of(pid: int) -> psutil.Process:
    """The live process. Raises AssertionError: in the middle of a restore there is none.

    Frozen ones, copies and writers of images have names of their own, a moment after they were
    made: the live process is older than what has just been made of it.
    """
    found = [s for s in below(pid) if not s.name.startswith("tt-") and "boot.py" in s.command]
    assert found, "no executor"
    return min(found, key=lambda seen: seen.since).process


def init_of(pid: int) -> psutil.Process:
    """The process that made the sandbox: process 1 in it, where there is a pid namespace."""
    found = [seen for seen in below(pid) if "init.main" in seen.command]
    assert found, "no init"
    # what it starts has its command line until it has become another program
    return min(found, key=lambda seen: seen.since).process


def frozen_of(pid: int, least: int = 0) -> list[psutil.Process]:
    """The frozen processes, one for each checkpoint that has one. least: as many are waited for.

    A checkpoint is made before its process has its name.
    """

    def found() -> list[psutil.Process]:
        return [seen.process for seen in below(pid) if seen.name == "tt-frozen"]

    until(lambda: len(found()) >= least, f"fewer than {least} frozen processes")
    return found()


def wait_for_no_zombies(pid: int) -> None:
    """Until every process below the supervisor that has ended is reaped."""
    until(lambda: not any(map(_is_zombie, psutil.Process(pid).children(recursive=True))))


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
