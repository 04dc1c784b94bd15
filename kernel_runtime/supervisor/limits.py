"""What this process may use: its control group's limits, its user's, or the machine's."""

from __future__ import annotations

import os
import resource


def memory_limit() -> int:
    """Bytes of memory that this process may use: its cgroup's limit or the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _within_cgroup(total, "memory.max", "memory/memory.limit_in_bytes")


def process_limit() -> int:
    """Processes that this user, or this cgroup, may have."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limit = soft if soft != resource.RLIM_INFINITY and os.geteuid() != 0 else 1 << 30
    return _within_cgroup(limit, "pids.max", "pids/pids.max")


def _within_cgroup(limit: int, *names: str) -> int:
    """Return the limit, or the control group's if that is lower (cgroups(7); both versions)."""
    for name in names:
        try:
            with open(f"/sys/fs/cgroup/{name}") as f:
                text = f.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit
