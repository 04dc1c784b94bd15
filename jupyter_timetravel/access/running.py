"""The kernels with time travel that run now, found by the connection files that they were given.

A connection file says where a kernel was; whether it is there still, and which notebook it has by
now, only the kernel itself can say. So each is asked, all at once, and who does not answer within
a moment is not there.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from jupyter_core.paths import jupyter_runtime_dir

from jupyter_timetravel import commands
from jupyter_timetravel.access.errors import NoSuchKernel
from jupyter_timetravel.client import Client
from jupyter_timetravel.wire import RequestTimeout
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.timeline.text import one_line

ANSWER_S: Final = 3.0
"""Seconds within which a kernel that is there says what it is."""

_CONNECT_S: Final = 0.5
_AT_ONCE: Final = 16
_FILE_NAME: Final = re.compile(r"kernel-(.+)\.json")


@dataclass(frozen=True)
class RunningKernel:
    """One kernel that has answered. ``status``: its answer, as docs/protocol.md has it."""

    connection_file: Path
    started_at: datetime
    status: dict[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """As servers call it, where they do: from the name of the connection file."""
        found = _FILE_NAME.fullmatch(self.connection_file.name)
        return found[1] if found else self.connection_file.stem

    @property
    def timeline(self) -> str:
        """The id of its timeline."""
        return str(self.status["timeline"])

    @property
    def notebook(self) -> str | None:
        """The path of its notebook, links resolved; None for a kernel without one."""
        found = self.status.get("notebook")
        return str(found) if found else None

    @property
    def kernel_name(self) -> str:
        """The name under which its timeline is kept."""
        return str(self.status.get("kernel_name") or "")

    @property
    def is_ending(self) -> bool:
        """Whether it shuts down."""
        return bool(self.status.get("ending"))

    @property
    def title(self) -> str:
        """How it is called in a sentence."""
        return one_line(self.notebook or f"the kernel {self.id}", 200)

    def record(self) -> dict[str, Any]:
        """For a list of kernels."""
        head = self.status.get("head")
        return {
            "id": self.id,
            "connection_file": str(self.connection_file),
            "notebook": self.notebook,
            "kernel_name": self.kernel_name,
            "timeline": self.timeline,
            "started_at": self.started_at.isoformat(),
            "busy": bool(self.status["busy"]),
            "head": head["number"] if head else None,
        }


def survey(timeout: float = ANSWER_S) -> list[RunningKernel]:
    """All that run with a connection file in Jupyter's runtime directory, the newest first.

    Those that are shutting down are left out: they run nothing any more.
    """
    found = [one for one in _asked(_files(), timeout) if not one.is_ending]
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def at(connection_file: str | Path, timeout: float = ANSWER_S) -> RunningKernel:
    """The kernel that was given this file. Raises NoSuchKernel, NoTimeTravel, RequestTimeout."""
    path = Path(connection_file).absolute()
    nobody = NoSuchKernel(
        f"No kernel answers at what {one_line(str(connection_file), 200)} says. Nothing was "
        "done; `jupyter timetravel kernels` lists those that run."
    )
    if not _is_open(path):
        raise nobody
    try:
        found = _ask(path, timeout)
    except RequestTimeout as error:
        if _is_open(path):
            raise
        raise nobody from error  # it ended while it was asked
    if found.is_ending:
        raise NoSuchKernel(
            f"The kernel of {found.title} is shutting down. Nothing was done; wait until it has "
            "ended."
        )
    return found


def is_ending(notebook: str, timeout: float = ANSWER_S) -> bool:
    """Whether a kernel says that it is about to let go of this notebook."""
    path = os.path.realpath(notebook)
    return any(one.is_ending and one.notebook == path for one in _asked(_files(), timeout))


def is_there(kernel: RunningKernel) -> bool:
    """Whether something still listens where the kernel did; a moment at most."""
    return _is_open(kernel.connection_file)


def _files() -> list[Path]:
    try:
        return sorted(Path(jupyter_runtime_dir()).glob("kernel-*.json"))
    except OSError:
        return []


def _asked(files: Iterable[Path], timeout: float) -> list[RunningKernel]:
    def one(path: Path) -> RunningKernel | None:
        # a stale file, one of another program, a kernel without time travel or one that just ends
        with suppress(OSError, ValueError, KeyError, TimeTravelError):
            if _is_open(path):
                return _ask(path, timeout)
        return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [found for found in pool.map(one, files) if found is not None]


def _ask(path: Path, timeout: float) -> RunningKernel:
    started = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    with Client.from_connection_file(path, timeout=timeout) as client:
        return RunningKernel(path, started, dict(client.ask(commands.status())))


def _is_open(path: Path) -> bool:
    """Whether somebody listens there: a connection of zmq's own would wait for ever."""
    try:
        told = json.loads(path.read_text())
        transport, ip, port = (
            told.get("transport", "tcp"),
            str(told["ip"]),
            int(told["control_port"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    try:
        if transport == "ipc":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_CONNECT_S)
                probe.connect(f"{ip}-{port}")
        else:
            socket.create_connection((ip, port), _CONNECT_S).close()
    except OSError:
        return False
    return True
