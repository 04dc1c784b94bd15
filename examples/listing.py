"""A full listing of directories with digests: what tells whether anything in them has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Entry = tuple[int, int, int, int, int, int, str]
"""Inode, mode, owner, group, size in bytes, time of change in ns, digest or a link's target."""


def listing(*directories: Path) -> dict[str, Entry]:
    """Each path in and below the directories, by its whole name."""
    found: dict[str, Entry] = {}
    for top in map(str, directories):
        found[top] = _entry(top)
        for parent, names, files in os.walk(top):
            for path in (os.path.join(parent, name) for name in [*names, *files]):
                found[path] = _entry(path)
    return found


def differences(before: dict[str, Entry], after: dict[str, Entry]) -> list[str]:
    """The paths that are in one only, or not the same."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _entry(path: str) -> Entry:
    st = os.lstat(path)
    content = ""
    if stat.S_ISLNK(st.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(st.st_mode):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        content = digest.hexdigest()
    return st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, content
