"""Names of Jupyter servers, by which a container says whose it is."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from kernel_runtime.linux import boot_id


@lru_cache(maxsize=1)
def this_server() -> str:
    """Names this process, also after its pid was given to another: pid, start, boot."""
    return _identity(os.getpid())


def is_alive(server: str) -> bool:
    """Whether a process so named still runs."""
    try:
        return _identity(int(server.split(":")[0])) == server
    except (OSError, ValueError):
        return False


def _identity(pid: int) -> str:
    """Raises OSError if there is no such process."""
    # its name may hold anything; what follows the last bracket are numbers (proc(5))
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return f"{pid}:{fields[19]}:{boot_id()}"
