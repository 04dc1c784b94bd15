"""Whether a directory lies on a network filesystem, where SQLite's WAL mode must not be used.

WAL needs memory that all users of the database share, which two hosts do not have
(https://sqlite.org/wal.html, "Overview").
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gfs2", "ocfs2"}
    | {"beegfs", "gpfs", "glusterfs", "orangefs", "virtiofs"}
)


_MOUNTS: Final = Path("/proc/self/mountinfo")


def is_network(directory: Path, mountinfo: Path = _MOUNTS) -> bool:
    """Whether the filesystem is of a known network type, or FUSE, which may hide one.

    False where that cannot be told (no /proc): then the filesystem is taken for a local one.
    """
    found = name(directory, mountinfo)
    return found in NETWORK or found.startswith("fuse")


def name(directory: Path, mountinfo: Path = _MOUNTS) -> str:
    """The type of the filesystem as the mount table has it (``ext4``); "" where none tells."""
    try:
        text = mountinfo.read_text(errors="surrogateescape")
        target = os.path.realpath(directory)
    except OSError:
        return ""
    found = ("", "")
    for line in text.splitlines():
        # proc_pid_mountinfo(5): the mount point is field 5, the type follows the lone hyphen.
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 6 or not right:
            continue
        point = fields[4].replace("\\040", " ")
        # The last of equal mount points is the one on top.
        if _contains(point, target) and len(point) >= len(found[0]):
            found = (point, right.split(" ")[0])
    return found[1]


def _contains(point: str, path: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")
