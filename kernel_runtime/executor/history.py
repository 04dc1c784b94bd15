"""IPython's history with its database in the supervisor's hands.

This process keeps what belongs to the session's memory (``In``, ``_i``, ``Out``), reports each line
as it is run and asks the supervisor for what the database holds. It never writes the file, and no
thread of it can be frozen in the middle of a transaction. With ``hist_file=":memory:"`` the
database is a part of this process, as in a stock kernel, and goes back with it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from IPython.core import history

from kernel_runtime.executor.link import Link
from kernel_runtime.executor.signals import interrupts_put_off
from kernel_runtime.frames import Frame, Kind

_BUSY_S = 2.0


class _Rows(list[tuple[Any, ...]]):
    """What a query found, with the methods of a cursor that readers use."""

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.pop(0) if self else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows = list(self)
        self.clear()
        return rows


class _Database(history.DummyDB):  # IPython takes no other substitute
    """What the manager holds in place of a connection: queries go to the supervisor."""

    def __init__(self, manager: HistoryManager) -> None:
        self._manager = manager

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> _Rows:
        """Run a query. Raises sqlite3.OperationalError; only what reads is allowed."""
        return self._manager.query(sql, parameters)

    def close(self) -> None:
        """There is nothing to close."""


class HistoryManager(history.HistoryManager):
    """Named as IPython's own, so that ``%config HistoryManager`` and configuration files find it.

    The database's session number is drawn by the supervisor when the first line is written, and
    asked for when somebody wants to know it: a woken process has another than its ancestor, whose
    branch has used the next lines.
    """

    _corrupt_db_limit = -1
    """IPython must never take the user's database for a broken one and move it away from here."""

    def __init__(self, shell: Any, link: Link, **traits: Any) -> None:
        self._link = link
        self._file = ""
        self._number: int | None = None
        self._era = 0
        self._requests = 0
        super().__init__(shell=shell, **traits)
        if self._file:
            self.hist_file = self._named

    def init_db(self) -> None:
        """Take note of the file; the supervisor opens it."""
        if not self.enabled or str(self.hist_file) == ":memory:":
            super().init_db()
            return
        self._named: Path | str = self.hist_file
        self._file = os.path.abspath(self.hist_file)
        self.db = _Database(self)
        # until the end of __init__: for a file it would start the thread that writes it
        self.hist_file = ":memory:"

    # The session

    @property
    def session_number(self) -> int:
        """The number under which the database has this session; 0 where it cannot be known."""
        if self._number is None and self._file and self._can_ask():
            try:
                self._number = self._ask()[1]
            except _sqlite3().Error as error:
                self.log.error("%s gives no session number: %s", self._file, error)
        return self._number or 0

    @session_number.setter
    def session_number(self, number: int) -> None:
        self._number = number

    def new_session(self, conn: Any = None) -> None:
        """Begin a session."""
        if not self._file:
            super().new_session(conn)
            return
        self._era += 1
        self._number = None
        self._report(begin=True)

    def woken(self) -> None:
        """In a woken process: the supervisor tells it from its ancestor and has a new number."""
        if self._file:
            self._number = None

    def end_session(self) -> None:
        """Have the end and the number of lines written."""
        if not self._file:
            super().end_session()
            return
        with contextlib.suppress(OSError):  # at the end of the process the link may be cut
            self._report(end=True)

    def name_session(self, name: str) -> None:
        """Have the remark written."""
        if not self._file:
            super().name_session(name)
            return
        self._report(remark=name)

    # Lines

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Keep a line and report it."""
        super().store_inputs(line_num, source, source_raw)
        if self._file:
            self.writeout_cache()

    def store_output(self, line_num: int) -> None:
        """Report a line's output, if the user wants that in the database."""
        super().store_output(line_num)
        if self._file:
            self.writeout_cache()

    def writeout_cache(self, conn: Any = None) -> None:
        """Report what was not yet. What is asked for afterwards is answered with it."""
        if not self._file:
            super().writeout_cache(conn)
            return
        with self.db_input_cache_lock:
            inputs, self.db_input_cache = self.db_input_cache, []
        with self.db_output_cache_lock:
            outputs, self.db_output_cache = self.db_output_cache, []
        if inputs or outputs:
            self._report(inputs=inputs, outputs=[(line, str(output)) for line, output in outputs])

    def _report(self, **fields: Any) -> None:
        self._link.report(
            report="history",
            file=self._file,
            era=self._era,
            every=self.db_cache_size,
            lines=len(self.input_hist_parsed) - 1,
            **fields,
        )

    # Reading

    def _run_sql(self, *args: Any, **kwargs: Any) -> Iterable[Any]:
        if not self._file:
            return super()._run_sql(*args, **kwargs)
        try:
            return super()._run_sql(*args, **kwargs)
        except _sqlite3().Error as error:
            # else IPython would take the database for a broken one and move it away
            self.log.error("The history %s could not be read: %s", self._file, error)
            return iter(())

    def get_session_info(self, session: int = 0) -> Any:
        """As IPython's: number, start, end, lines, remark."""
        if not self._file:
            return super().get_session_info(session)
        if session <= 0:
            session += self.session_number
        row = self.query("SELECT * from sessions where session == ?", (session,)).fetchone()
        if row is None:
            return None
        start, end = (t and datetime.datetime.fromisoformat(t) for t in row[1:3])
        return (row[0], start, end, *row[3:])

    def query(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        """Run a query on the database. Raises sqlite3.OperationalError."""
        if not self._can_ask():
            return self._query_file(sql, parameters)
        rows, self._number = self._ask(sql=sql, parameters=list(parameters))
        return rows

    def _can_ask(self) -> bool:
        main = threading.current_thread() is threading.main_thread()
        return main and os.getpid() == self._link.pid

    def _ask(self, **fields: Any) -> tuple[_Rows, int | None]:
        self._requests += 1
        number = self._requests
        rows = _Rows()
        taken: list[Frame] = []
        answer: dict[str, Any] = {}

        def is_last(frame: Frame) -> bool:
            if frame.kind != Kind.COMMAND:
                return False
            content = frame.json()
            if content["command"] != "history" or content["id"] != number:
                return False
            taken.append(frame)
            rows.extend(map(tuple, content["rows"]))
            answer.update(content)
            return bool(content["last"])

        # no command is obeyed meanwhile: the process is not frozen in the middle of this
        with interrupts_put_off():
            self._report(ask=number, **fields)
            self._link.wait(is_last, lambda frame: bool(taken) and taken[-1] is frame)
        if answer["error"]:
            raise _sqlite3().OperationalError(answer["error"])
        return rows, answer["session"]

    def _query_file(self, sql: str, parameters: Sequence[Any]) -> _Rows:
        """In a thread, or in a process that user code forked: neither can wait for an answer.

        Never writes, also not to put right a transaction that seems to be left behind.
        """
        sqlite3 = _sqlite3()
        address = f"{Path(self._file).as_uri()}?mode=ro"
        for last in (False, True):
            try:
                with contextlib.closing(
                    sqlite3.connect(address, timeout=_BUSY_S, uri=True)
                ) as connection:
                    return _Rows(connection.execute(sql, tuple(parameters)))
            except sqlite3.Error as error:
                if last:
                    raise sqlite3.OperationalError(str(error)) from error
        raise AssertionError


def _sqlite3() -> Any:
    """The module, for a Python that has it: without it the history is not enabled."""
    import sqlite3

    return sqlite3
