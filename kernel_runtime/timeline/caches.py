"""Files that programs make again by themselves: counted in reports, not named."""

from __future__ import annotations

from typing import Final

_NAMES: Final = frozenset(
    {
        "__pycache__",
        ".cache",
        ".ipython",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".nv",
    }
)
_PLACES: Final = ("/var/cache/", "/var/lib/apt/lists/", "/var/log/")
_ENDS: Final = (".pyc", "/.python_history", "/.bash_history", "/etc/ld.so.cache")


def is_cache(path: str) -> bool:
    """Whether an absolute path is of a cache, a log or a program's own notes."""
    return (
        path.endswith(_ENDS)
        or path.startswith(_PLACES)
        or not _NAMES.isdisjoint(path.split("/"))
        or "/conda/pkgs/" in path
        or "/matplotlib/fontlist-" in path
    )
