"""Bring the kernel's own writes to rest before the process is frozen.

A thread comes back in the middle of whatever it did. For what is written to places that are not
rolled back with the process that would be wrong: a transaction on IPython's history database that
goes on after others have written to it would damage the database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kernel_runtime.errors import CheckpointRefused

_HISTORY_S = 2.0
"""Seconds to wait for the history thread: a transaction takes milliseconds, waiting for another
kernel's lock on the database up to five seconds."""


@contextlib.contextmanager
def history_at_rest(manager: Any) -> Iterator[None]:
    """Hold IPython's history thread between two transactions.

    Raises CheckpointRefused if it does not come to rest in time.
    """
    locks = [
        lock
        for name in ("db_input_cache_lock", "db_output_cache_lock")
        if (lock := getattr(manager, name, None)) is not None
    ]
    with contextlib.ExitStack() as held:
        for lock in locks:
            if not lock.acquire(timeout=_HISTORY_S):
                raise CheckpointRefused(
                    "The process could not be frozen: IPython's history database is busy. The "
                    "session runs on; files are captured. The next cell tries again."
                )
            held.callback(lock.release)
        yield


def forget_unwritten(manager: Any) -> None:
    """In a woken process, with the thread held: the process that was frozen writes these lines.

    Written here too, under the same session and line numbers, they would be refused with an error
    on the page.
    """
    for name in ("db_input_cache", "db_output_cache"):
        cache = getattr(manager, name, None)
        if isinstance(cache, list):
            cache.clear()
