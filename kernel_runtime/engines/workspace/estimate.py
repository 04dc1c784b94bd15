"""How large a first capture would be, without reading a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kernel_runtime.engines.workspace.rules import Rules
from kernel_runtime.later import dataclass


@dataclass(frozen=True)
class Estimate:
    """files and bytes counted; complete: False if the count stopped at a limit."""

    files: int
    bytes: int
    complete: bool


def estimate(
    roots: Sequence[Path], rules: Sequence[Rules], max_files: int, max_bytes: int
) -> Estimate:
    """Count files and their bytes on disk, up to either limit. Never raises OSError."""
    files = size = 0
    for root, rule in zip(roots, rules):
        pending = [(os.fsencode(root), b"")]
        while pending:
            where, path = pending.pop()
            try:
                listing = os.scandir(where)
            except OSError:
                continue
            with listing:
                for item in listing:
                    below = path + b"/" + item.name if path else item.name
                    if rule.excludes(below):
                        continue
                    try:
                        found = item.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if item.is_dir(follow_symlinks=False):
                        if (found.st_dev, found.st_ino) not in rule.identities:
                            pending.append((item.path, below))
                        continue
                    files += 1
                    size += min(found.st_size, found.st_blocks * 512)
                    if files > max_files or size > max_bytes:
                        return Estimate(files, size, False)
    return Estimate(files, size, True)
