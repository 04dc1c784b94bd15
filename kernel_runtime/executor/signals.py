"""What breaks into a cell: the one exception that ends it without an error; interrupts put off."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class LeaveCell(BaseException):
    """Ends the running cell at once and silently.

    Raised in the cell that asks for a restore (its reply comes from the supervisor), and in a
    process woken from a checkpoint that was made in the middle of a cell (nobody waits for that
    cell's reply any more). Not an Exception: user code that catches those must not hold it up.
    """


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """In the main thread: let an interrupt strike only after what must not be left half done."""
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came and callable(handler):
            handler(signal.SIGINT, None)
