"""Numbered places at which tests break a capture or a restore.

A test sets `hook`; it is called with the name of each place that is passed. To kill the
process at the n-th place, the hook counts. Without a hook a place costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass the place called name."""
    if hook is not None:
        hook(name)
