"""Files whose bytes change without any change that stat(2) shows. proc(5), "maps", "children"."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from kernel_runtime import mappings


def writable_mappings(proc: str) -> set[tuple[int, int]]:
    """Return (device, inode) of the files that a process has mapped shared and writable.

    proc: its directory below /proc. What descends from it counts too, unless its parent has ended.
    """
    if not sys.platform.startswith("linux"):
        return set()
    return {file for each in _with_descendants(proc) for file in _mapped(each)}


def _with_descendants(proc: str) -> Iterator[str]:
    yield proc
    try:
        threads = os.listdir(f"{proc}/task")
    except OSError:  # it ended meanwhile
        return
    for thread in threads:
        try:
            with open(f"{proc}/task/{thread}/children") as f:
                children = f.read().split()
        except OSError:
            continue
        for child in children:
            # numbers are those of the /proc that is looked at, which may be the sandbox's
            yield from _with_descendants(f"{os.path.dirname(proc)}/{child}")


def _mapped(proc: str) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):  # it ended meanwhile
        for mapping in mappings.shared(proc, writable=True):
            if mapping.inode:
                yield mapping.device, mapping.inode
