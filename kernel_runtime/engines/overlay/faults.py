"""Named places at which tests end this process: the supervisor, or the sandbox's init.

``TIMETRAVEL_KILL_AT`` is a file's path; the process that passes the place named in it ends there,
as if killed, and removes the file. Without the variable a place costs one comparison.
"""

from __future__ import annotations

import os
import signal

_file = os.environ.get("TIMETRAVEL_KILL_AT", "")


def point(name: str) -> None:
    """Pass the place called name."""
    if _file:
        _pass(name)


def _pass(name: str) -> None:
    try:
        with open(_file) as f:
            wanted = f.read()
    except OSError:
        return
    if wanted == name:
        os.unlink(_file)
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(137)  # process 1 cannot be killed from within
