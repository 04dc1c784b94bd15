"""IPython's history database, written and read for the executor.

The executor reports each line before it runs it; one thread here writes what has come, many lines
in one transaction. So nothing of a cell waits for the disk, a process can be frozen and woken at
any moment without harm to the database, and a sandboxed process needs no way to write it.

Each process, woken ones too, writes under a session number of its own: the lines that follow in
number were already used by the branch that was left. The number is drawn in the transaction that
writes the first line, so there is no waiting for it.

What is lost when the supervisor is killed is what has not been written yet: normally the lines of
the last few milliseconds; with ``db_cache_size`` up to so many; while another program holds the
database, what has come since.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_runtime.supervisor.executors import Executor

_BUSY_S = 1.0
"""Seconds to wait for another program's lock on the database."""

_RETRY_S = 5.0
_CLOSE_S = 2.5
_QUERY_S = 10.0
_CHUNK = 1000
"""Rows in one answer: the event loop stays free for others in between."""

_MOST_UNWRITTEN = 100_000
_SAVE_SIZE = 16384
"""Bytes: IPython keeps each broken database of this size or more, of smaller ones the last."""

_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}

_TABLES = (
    "CREATE TABLE IF NOT EXISTS sessions (session integer primary key autoincrement,"
    " start timestamp, end timestamp, num_cmds integer, remark text)",
    "CREATE TABLE IF NOT EXISTS history (session integer, line integer, source text,"
    " source_raw text, PRIMARY KEY (session, line))",
    "CREATE TABLE IF NOT EXISTS output_history (session integer, line integer, output text,"
    " PRIMARY KEY (session, line))",
)

Key = tuple[int, int]
"""One session of one process: the executor's incarnation, and how often it began one."""

_Change = tuple[Key, str, tuple[Any, ...]]


class HistoryFile:
    """One database. Knows no threads."""

    def __init__(self, path: str, log: logging.Logger) -> None:
        self.path = path
        self.every = 0
        self._log = log
        self._numbers: dict[Key, int] = {}
        self._running: dict[Key, int] = {}
        self._unwritten: list[_Change] = []
        self._lost = 0
        self._memory: sqlite3.Connection | None = None
        self._written = False
        self._complained = False

    # What is to be written

    def take(self, key: Key, report: dict[str, Any]) -> None:
        """Note what an executor reports."""
        self.every = int(report["every"])
        for other in [k for k in self._running if k != key]:
            self._end(other)  # a branch that was left
        self._running[key] = int(report["lines"])
        if report.get("begin"):
            self._unwritten.append((key, "begin", ()))
        for line, source, raw in report.get("inputs", ()):
            self._unwritten.append((key, "input", (int(line), _text(source), _text(raw))))
        for line, output in report.get("outputs", ()):
            self._unwritten.append((key, "output", (int(line), _text(output))))
        if "remark" in report:
            self._unwritten.append((key, "remark", (_text(report["remark"]),)))
        if report.get("end"):
            self._end(key)
        if (excess := len(self._unwritten) - _MOST_UNWRITTEN) > 0:
            del self._unwritten[:excess]
            self._lost += excess
            self._complain("is not to be written for so long that lines are lost")

    def _end(self, key: Key) -> None:
        self._unwritten.append((key, "end", (_utc(), self._running.pop(key))))

    @property
    def due(self) -> bool:
        """Whether it is time to write; the user may wish that it is done rarely."""
        lines = sum(kind in ("input", "output") for _, kind, _ in self._unwritten)
        return lines >= self.every if lines else bool(self._unwritten)

    @property
    def unwritten(self) -> int:
        """How much waits, and what was given up."""
        return len(self._unwritten) + self._lost

    def write(self) -> bool:
        """Write all; say whether that worked. What could not be written waits for the next time."""
        if not self._unwritten:
            return True
        for attempt in range(3):
            try:
                self._write()
            except sqlite3.Error as error:
                if attempt == 2 or not self._mend(error):
                    self._complain(f"cannot be written now ({error}); lines wait to be written")
                    return False
            else:
                self._written = True
                self._complained = False
                return True
        return False

    def number(self, key: Key) -> int | None:
        """Return the session's number if it has been drawn."""
        return self._numbers.get(key)

    def draw(self, key: Key) -> None:
        """Have its number drawn with what is written next."""
        if key not in self._numbers:
            self._unwritten.append((key, "begin", ()))

    def close(self) -> None:
        """Write the ends of the sessions, and all else."""
        for key in list(self._running):
            self._end(key)
        if not self.write() or self._lost:
            self._log.error("%d changes to the history %s are lost.", self.unwritten, self.path)

    # Writing

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: the file may be moved or replaced in between."""
        if self._memory is not None:
            yield self._memory
            return
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as connection:
            for table in _TABLES:
                connection.execute(table)
            yield connection

    def _write(self) -> None:
        numbers = dict(self._numbers)
        with self._connection() as connection, connection:
            for key, kind, values in self._unwritten:
                try:
                    self._apply(connection, numbers, key, kind, values)
                except (sqlite3.DataError, OverflowError) as error:
                    self._log.error("A line of the history is left out: %s", error)
        self._numbers = numbers
        self._unwritten.clear()

    def _apply(
        self,
        connection: sqlite3.Connection,
        numbers: dict[Key, int],
        key: Key,
        kind: str,
        values: tuple[Any, ...],
    ) -> None:
        if key not in numbers:
            if kind == "end":
                return
            numbers[key] = _draw(connection)
        if kind == "input":
            insert = "INSERT INTO history VALUES (?, ?, ?, ?)"
            try:
                connection.execute(insert, (numbers[key], *values))
            except sqlite3.IntegrityError:
                # the user has set the count back: as in IPython, a new session
                numbers[key] = _draw(connection)
                connection.execute(insert, (numbers[key], *values))
        elif kind == "output":
            # a second output of one line is not stored, as in IPython
            connection.execute(
                "INSERT OR IGNORE INTO output_history VALUES (?, ?, ?)", (numbers[key], *values)
            )
        elif kind == "remark":
            connection.execute(
                "UPDATE sessions SET remark=? WHERE session=?", (*values, numbers[key])
            )
        elif kind == "end":
            connection.execute(
                "UPDATE sessions SET end=?, num_cmds=? WHERE session=?", (*values, numbers[key])
            )

    def _mend(self, error: sqlite3.Error) -> bool:
        """Do what IPython does with a database that cannot be used; say whether to try again."""
        text = str(error)
        if "locked" in text or self._memory is not None:
            return False
        if "not a database" in text or "malformed" in text:
            return self._move_away(text)
        if self._written:
            return False
        self._complain(f"cannot be written ({error}); this session's history is not kept")
        self._memory = sqlite3.connect(":memory:")
        for table in _TABLES:
            self._memory.execute(table)
        self._numbers.clear()
        return True

    def _move_away(self, text: str) -> bool:
        path = Path(self.path)
        try:
            large = path.stat().st_size >= _SAVE_SIZE
            now = datetime.datetime.now(datetime.timezone.utc).isoformat().replace(":", ".")
            target = path.with_name(f"{path.stem}-corrupt{'-' + now if large else ''}{path.suffix}")
            path.rename(target)
        except OSError:
            return False
        self._log.error("The history %s is broken (%s); it is now %s.", path, text, target)
        self._numbers.clear()
        return True

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            self._log.error("The history %s %s.", self.path, text)

    # Reading

    def read(self, sql: str, parameters: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield what a query finds, in pieces. Raises sqlite3.Error; allows nothing but reading."""
        if self._memory is None:
            if not os.path.exists(self.path):
                return
            connection = sqlite3.connect(
                f"{Path(self.path).as_uri()}?mode=ro", timeout=_BUSY_S, uri=True
            )
        else:
            connection = sqlite3.connect(":memory:")
            self._memory.backup(connection)
        with contextlib.closing(connection):
            until = time.monotonic() + _QUERY_S
            connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
            )
            cursor = connection.execute(sql, tuple(parameters))
            while rows := cursor.fetchmany(_CHUNK):
                yield rows


class History:
    """The history of one kernel. Its own thread does all that touches a disk."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._files: dict[str, HistoryFile] = {}
        self._thread: threading.Thread | None = None

    def on_report(self, executor: Executor, report: dict[str, Any]) -> None:
        """Take what an executor reports or asks, in the event loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="history", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()

        def answer(**fields: Any) -> None:
            tell = partial(executor.link.command, "history", id=report["ask"], **fields)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell)

        key = (executor.incarnation, int(report["era"]))
        self._jobs.put(partial(self._do, key, report, answer))

    async def close(self) -> None:
        """Write what is left, for a few seconds at most."""
        if self._thread is None:
            return
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, _CLOSE_S)
        if self._thread.is_alive():
            lost = sum(file.unwritten for file in self._files.values())
            self._log.error("The database is busy: %d changes to the history are lost.", lost)

    # In the thread

    def _work(self) -> None:
        wait: float | None = None
        while True:
            jobs: list[Callable[[], None] | None] = []
            with contextlib.suppress(queue.Empty):
                jobs.append(self._jobs.get(timeout=wait))
                while True:
                    jobs.append(self._jobs.get_nowait())
            for job in jobs:
                if job is None:
                    for file in self._files.values():
                        file.close()
                    return
                try:
                    job()
                except Exception:  # the next lines are to be written all the same
                    self._log.exception("History")
            wait = None if self._write() else _RETRY_S

    def _write(self) -> bool:
        try:
            failed = [file for file in self._files.values() if file.due and not file.write()]
            return not failed
        except Exception:
            self._log.exception("History")
            return False

    def _do(self, key: Key, report: dict[str, Any], answer: Callable[..., None]) -> None:
        path = report["file"]
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = HistoryFile(path, self._log)
        file.take(key, report)
        if "ask" not in report:
            return
        error = ""
        try:
            if "sql" in report:
                file.write()
                for rows in file.read(report["sql"], report["parameters"]):
                    answer(rows=_plain(rows), last=False, session=file.number(key), error="")
            else:
                file.draw(key)
                if not file.write():
                    error = "the database is busy"
        except Exception as failure:  # whoever asks must have an answer
            error = str(failure) or type(failure).__name__
        answer(rows=[], last=True, session=file.number(key), error=error)


def _draw(connection: sqlite3.Connection) -> int:
    # as IPython's HistoryManager.new_session does
    cursor = connection.execute(
        "INSERT INTO sessions VALUES (NULL, ?, NULL, NULL, '')",
        (datetime.datetime.now().isoformat(" "),),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _utc() -> str:
    # as IPython's HistoryManager.end_session does
    return datetime.datetime.now(datetime.timezone.utc).isoformat(" ")


def _text(text: str) -> str:
    """Without what a cell may hold but UTF-8 cannot."""
    return str(text).encode("utf-8", "replace").decode()


def _plain(rows: list[Any]) -> list[list[Any]]:
    return [[str(v) if isinstance(v, bytes) else v for v in row] for row in rows]
