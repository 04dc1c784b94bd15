"""What this process may use: its control group's limits, its user's, or the machine's."""

from __future__ import annotations

import os
import resource
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def memory_limit() -> int:
    """Bytes of memory that this process may use: its cgroup's limit or the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _within_cgroup(total, "memory.max", "memory/memory.limit_in_bytes")


def memory_available() -> int:
    """Bytes of memory that can be had before the machine, or the cgroup, has to look for some.

    MemAvailable of proc(5). In a cgroup files that nobody used for a while count as free, as they
    do for Kubernetes (cgroup-v2.rst, "memory.stat").
    """
    with open("/proc/meminfo") as f:
        available = _field(f.read(), "MemAvailable:") * 1024
    for directory, limit, usage, files in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = (_number(CGROUPS / directory / name) for name in (limit, usage))
        if most is None or used is None:
            continue
        try:
            idle = _field((CGROUPS / directory / "memory.stat").read_text(), files)
        except OSError:
            idle = 0
        available = min(available, max(0, most - used + idle))
    return available


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == name:
            return int(fields[1])
    return 0


def _number(path: Path) -> int | None:
    """What a file of a control group says; None where it says no number."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def process_limit() -> int:
    """Processes that this user, or this cgroup, may have."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limit = soft if soft != resource.RLIM_INFINITY and os.geteuid() != 0 else 1 << 30
    return _within_cgroup(limit, "pids.max", "pids/pids.max")


def _within_cgroup(limit: int, *names: str) -> int:
    """Return the limit, or the control group's if that is lower (cgroups(7); both versions)."""
    for name in names:
        number = _number(CGROUPS / name)
        if number is not None:
            limit = min(limit, number)
    return limit
