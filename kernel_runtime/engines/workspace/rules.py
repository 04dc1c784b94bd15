"""Which paths are left out of capture and restore. The rules are stored in each snapshot.

A pattern is one of
  NAME        any entry with this name, at any depth (shell wildcards * ? [])
  /PATH       this path below a root (no wildcards)
  ~/PATH      this path below the user's home, where it lies inside a root (no wildcards)

What is left out is neither captured nor deleted nor changed by a restore, with all that is
below it. `.gitignore` is never looked at.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.names import to_bytes, to_text
from kernel_runtime.later import dataclass

STAGING_PREFIX: Final = b".timetravel-restore-"
"""Names that a running restore uses inside a root; never captured, whatever the rules are."""

DEFAULT_EXCLUDES: Final[tuple[str, ...]] = (
    ".nfs[0-9a-f]*",  # deleted files that an NFS client keeps until they are closed
    ".fuse_hidden*",  # the same on FUSE
    "lost+found",
    ".snapshot",  # read-only views of older states, made by file servers
    ".zfs",
    "~/.cache",  # by definition what can be had again
    "~/.local/share/jupyter/runtime",  # connection files of running kernels
)


@dataclass(frozen=True)
class Rules:
    """Compiled patterns of one root.

    paths: byte paths relative to the root. names: regular expression over entry names.
    identities: (st_dev, st_ino) of directories that are left out wherever they are reached
    from, with the reason: the store, the journal, another root.
    """

    patterns: tuple[str, ...]
    paths: frozenset[bytes]
    names: re.Pattern[str]
    identities: Mapping[tuple[int, int], str]

    def excludes_name(self, name: bytes) -> bool:
        """Whether an entry of this name is left out at any depth."""
        return name.startswith(STAGING_PREFIX) or self.names.match(to_text(name)) is not None

    def excludes(self, path: bytes) -> bool:
        """Whether this path relative to the root is left out."""
        return path in self.paths or self.excludes_name(path.rpartition(b"/")[2])


def compile_rules(
    patterns: Sequence[str], root: Path, identities: Mapping[tuple[int, int], str]
) -> Rules:
    """Rules for one root. A ~/ pattern outside of it has no effect there."""
    home = Path(os.path.expanduser("~"))
    paths: set[bytes] = set()
    names: list[str] = []
    for pattern in patterns:
        if pattern.startswith("/"):
            paths.add(to_bytes(pattern.strip("/")))
        elif pattern.startswith("~/"):
            try:
                inside = (home / pattern[2:]).relative_to(root)
            except ValueError:
                continue
            paths.add(os.fsencode(str(inside)))
        else:
            names.append(fnmatch.translate(pattern))
    expression = "|".join(names) if names else r"(?!)"
    return Rules(tuple(patterns), frozenset(paths), re.compile(expression), dict(identities))
