"""Names of processes that stay theirs when their pid is given to another."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from kernel_runtime.linux import boot_id


@lru_cache(maxsize=1)
def this_process() -> str:
    """Names this process: pid, start, boot."""
    return _identity(os.getpid())


def is_alive(process: str) -> bool:
    """Whether a process so named still runs, as far as this pid namespace shows."""
    try:
        return _identity(int(process.split(":")[0])) == process
    except (OSError, ValueError):
        return False


def _identity(pid: int) -> str:
    """Raises OSError if there is no such process, or if it has ended and nobody has asked how."""
    # its name may hold anything; what follows the last bracket are numbers (proc(5))
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return f"{pid}:{fields[19]}:{boot_id()}"
