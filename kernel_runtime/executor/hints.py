"""Errors that come of how a session is held, not of what its cell does: said where they happen."""

from __future__ import annotations

import errno
import os

RENAME = (
    "time travel: outside of the workspace a directory cannot be renamed once a checkpoint holds "
    "it, and nothing between the workspace and another place; `shutil.move` and `mv` copy instead "
    "(docs/environment.md, Renaming a directory).\n"
)


def hint(error: BaseException | None) -> str:
    """What to say after an error's traceback; empty for those that happen on any machine, too."""
    if not isinstance(error, OSError) or error.errno != errno.EXDEV:
        return ""
    source, target = error.filename, error.filename2
    try:
        folder = os.path.dirname(os.path.abspath(target))
        # one filesystem: a plain machine would have renamed it
        return RENAME if os.lstat(source).st_dev == os.stat(folder).st_dev else ""
    except (OSError, TypeError):  # gone meanwhile; an error that a library made without names
        return ""
