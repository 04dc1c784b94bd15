"""Session numbers of IPython's history, drawn ahead of time.

A woken process must write its history under a session number of its own: the line numbers that
follow were already used by the branch that was left. Drawing one is a transaction on the user's
history database, which waits for the disk; so one is kept ready here, and a woken process is told
it instead of waiting.
"""

from __future__ import annotations

import asyncio
import datetime
import sqlite3

_BUSY_S = 2.0


class HistorySessions:
    """The spare session number of one kernel."""

    def __init__(self) -> None:
        self._path = ""
        self._spare: int | None = None

    def use(self, path: str) -> None:
        """Say which database the executor writes; empty: none."""
        self._path = path

    def take(self) -> int | None:
        """Return the spare number, or None: then the executor draws one itself."""
        spare, self._spare = self._spare, None
        return spare

    async def refill(self) -> None:
        """Draw the next one. A database that cannot be written is the executor's to complain of."""
        if self._path and self._spare is None:
            self._spare = await asyncio.to_thread(self._draw, self._path)

    @staticmethod
    def _draw(path: str) -> int | None:
        try:
            connection = sqlite3.connect(f"file:{path}?mode=rw", timeout=_BUSY_S, uri=True)
            try:
                with connection:
                    # as IPython's HistoryManager.new_session does
                    cursor = connection.execute(
                        "INSERT INTO sessions VALUES (NULL, ?, NULL, NULL, '')",
                        (datetime.datetime.now().isoformat(" "),),
                    )
                return cursor.lastrowid
            finally:
                connection.close()
        except sqlite3.Error:
            return None
