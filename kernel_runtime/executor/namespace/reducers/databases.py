"""Database connections: those in memory by their content, those to a file by its path.

sqlite3 and duckdb in memory are part of the state as arrays are. What a connection is in the middle
of (a transaction, a cursor) belongs to the old process.
"""

from __future__ import annotations

import re
import sys
from contextlib import closing, suppress
from typing import Any, Final

from kernel_runtime.executor.namespace import main_thread
from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

_SETTINGS: Final = ("row_factory", "text_factory", "isolation_level", "autocommit")
_CLOSED: Final = "a closed connection cannot be kept"
_ROWS_AT_ONCE: Final = 20_000


@reducer("sqlite3.Connection")
def reduce_sqlite(obj: Any, context: Context) -> Any:
    """A connection answers the thread only that made it: mostly the main one."""
    return main_thread.call(lambda: _sqlite(obj, context))


def _sqlite(obj: Any, context: Context) -> Any:
    settings = {name: getattr(obj, name) for name in _SETTINGS if hasattr(obj, name)}
    obj.row_factory, obj.text_factory = None, str  # what is asked below is read as plain rows
    try:
        return _sqlite_parts(obj, context, settings)
    finally:
        obj.row_factory, obj.text_factory = settings["row_factory"], settings["text_factory"]


def _sqlite_parts(obj: Any, context: Context, settings: dict[str, Any]) -> Any:
    import sqlite3

    try:
        databases = obj.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as error:
        raise NotKept(_CLOSED if "closed" in str(error) else f"sqlite3 says: {error}") from None
    files = {name: path for _, name, path in databases if name != "temp"}
    if obj.in_transaction:
        end = "rolled back" if files["main"] else "committed"
        context.notice(f"the transaction that was open comes back {end}")
    added = _added(obj)
    if added:
        context.notice(f"what was added to the connection is not kept: {', '.join(added)}")
    parts = [(name, path, None if path else _content(obj, name)) for name, path in files.items()]
    return connect_sqlite, (type(obj), parts), settings, None, None, set_up_sqlite


def _added(connection: Any) -> list[str]:
    """Functions and collations that a fresh connection does not have, and temporary tables.

    By pragmas that do not look at a database's file: in a copy of the process it is not open.
    """
    import sqlite3

    names = set()
    with closing(sqlite3.connect(":memory:")) as fresh:
        for pragma, column, text in (
            ("function_list", 0, "{}()"),
            ("collation_list", 1, "the collation {}"),
        ):
            known = {row[column] for row in fresh.execute(f"PRAGMA {pragma}")}
            there = {row[column] for row in connection.execute(f"PRAGMA {pragma}")}
            names |= {text.format(name) for name in there - known}
    with suppress(sqlite3.Error):
        query = "SELECT name FROM sqlite_temp_master WHERE type = 'table'"
        names |= {f"the temporary table {name}" for (name,) in connection.execute(query)}
    return sorted(names)


def _content(connection: Any, name: str) -> bytes | str:
    """A database in memory: as SQLite writes it, before Python 3.11 as SQL (the main one only)."""
    (pages,) = connection.execute(f'PRAGMA "{name}".page_count').fetchone()
    if not pages:
        return b""
    if hasattr(connection, "serialize"):
        return bytes(connection.serialize(name=name))
    if name != "main":
        raise NotKept("a database attached in memory cannot be kept before Python 3.11")
    return "\n".join(connection.iterdump())


def connect_sqlite(cls: Any, parts: list[tuple[str, str, bytes | str | None]]) -> Any:
    """The first part is the main database. Raises NotKept where a file is not there any more."""
    import os
    import sqlite3

    for _, path, _ in parts:
        if path and not os.path.exists(path):
            raise NotKept(f"the database {path} is not there any more")
    connection = sqlite3.connect(parts[0][1] or ":memory:", factory=cls)
    for name, path, content in parts:
        if name != "main":
            connection.execute("ATTACH DATABASE ? AS ?", (path or ":memory:", name))
        if isinstance(content, str):
            connection.executescript(content)
        elif content:
            connection.deserialize(content, name=name)
    return connection


def set_up_sqlite(connection: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        setattr(connection, name, value)


@reducer("sqlite3.Row")
def reduce_sqlite_row(obj: Any, context: Context) -> Any:
    return make_sqlite_row, (obj.keys(), tuple(obj))


def make_sqlite_row(names: list[str], values: tuple[Any, ...]) -> Any:
    """A row is made by a cursor only: one is asked for the values under the names."""
    import sqlite3

    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    quoted = ", ".join('? AS "{}"'.format(name.replace('"', '""')) for name in names)
    return connection.execute(f"SELECT {quoted}", values).fetchone()


@reducer("_duckdb.DuckDBPyConnection", "duckdb.duckdb.DuckDBPyConnection")
def reduce_duckdb(obj: Any, context: Context) -> Any:
    duckdb: Any = sys.modules["duckdb"]
    try:
        ((path,),) = obj.execute(
            "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"
        ).fetchall()
        if path:
            ((mode,),) = obj.execute("SELECT current_setting('access_mode')").fetchall()
            return connect_duckdb, (path, [], [], mode.lower() == "read_only")
        return connect_duckdb, (None, *_tables(obj), False)
    except duckdb.Error as error:
        raise NotKept(f"a duckdb connection cannot be kept: {error}") from None


_START: Final = re.compile(r"START (?:WITH )?-?\d+")
_CREATED: Final = (
    "SELECT sql FROM duckdb_tables() WHERE NOT internal",
    "SELECT sql FROM duckdb_indexes()",
    "SELECT sql FROM duckdb_views() WHERE NOT internal",
)


def _tables(connection: Any) -> tuple[list[str], list[tuple[str, Any]]]:
    """The statements that make everything, and the rows of each table."""
    schemas = connection.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal"
        " AND database_name = current_database()"
    ).fetchall()
    statements = [f'CREATE SCHEMA IF NOT EXISTS "{name}"' for (name,) in schemas]
    statements += [
        sql if last is None else _START.sub(f"START {last + step}", sql)
        for sql, last, step in connection.execute(
            "SELECT sql, last_value, increment_by FROM duckdb_sequences() WHERE NOT temporary"
        ).fetchall()
    ]
    for query in _CREATED:
        statements += [sql for (sql,) in connection.execute(query).fetchall() if sql]
    tables = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal"
    ).fetchall()
    rows = []
    for schema, table in tables:
        name = f'"{schema}"."{table}"'
        rows.append((name, _rows(connection.sql(f"SELECT * FROM {name}"))))
    return statements, rows


def _rows(relation: Any) -> Any:
    """As an Arrow table if Arrow is there, which is quick; else row by row."""
    return relation.to_arrow_table() if "pyarrow" in sys.modules else relation.fetchall()


def _insert(connection: Any, name: str, rows: list[Any]) -> None:
    """Column by column, many rows at once: row by row a table of 100,000 takes minutes."""
    import duckdb

    kinds = [row[1] for row in connection.execute(f"DESCRIBE {name}").fetchall()]
    columns = ", ".join(f"unnest(CAST(? AS {kind}[]))" for kind in kinds)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        try:
            lists = [list(column) for column in zip(*part)]
            connection.execute(f"INSERT INTO {name} SELECT {columns}", lists)
        except duckdb.Error:  # a type of which it has no lists
            marks = ", ".join("?" * len(kinds))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", part)


def connect_duckdb(
    path: str | None, statements: list[str], tables: list[tuple[str, Any]], read_only: bool
) -> Any:
    import os

    import duckdb

    if path is not None:
        if not os.path.exists(path):
            raise NotKept(f"the database {path} is not there any more")
        try:
            return duckdb.connect(path, read_only=read_only)
        except duckdb.IOException as error:
            raise NotKept(f"the database {path} cannot be opened: {error}") from None
    connection = duckdb.connect(":memory:")
    indexes = [
        sql for sql in statements if sql.upper().startswith(("CREATE INDEX", "CREATE UNIQUE"))
    ]
    for sql in statements:
        if sql not in indexes:
            connection.execute(sql)
    for name, rows in tables:
        if isinstance(rows, list):
            _insert(connection, name, rows)
        else:
            connection.register("timetravel_rows", rows)
            connection.execute(f"INSERT INTO {name} SELECT * FROM timetravel_rows")
            connection.unregister("timetravel_rows")
    for sql in indexes:
        connection.execute(sql)
    return connection
