"""The one exception that ends a cell without an error."""

from __future__ import annotations


class LeaveCell(BaseException):
    """Ends the running cell at once and silently.

    Raised in the cell that asks for a restore (its reply comes from the supervisor), and in a
    process woken from a checkpoint that was made in the middle of a cell (nobody waits for that
    cell's reply any more). Not an Exception: user code that catches those must not hold it up.
    """
