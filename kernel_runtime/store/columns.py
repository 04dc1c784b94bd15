"""The database's connection, and what of a row is sealed in an encrypted store.

Sealed is what says something about the content of a session. Not sealed is what the tree of
checkpoints is made of: ids, numbers, parents, times, kinds and states of captures, sizes, and the
notebook's path. A sealed value is a BLOB, also in a column of text; a plain one from before the
store was encrypted stays readable. Digests of content are hidden (``Cipher.hide``) or marked, so
that nobody can compare them with guesses.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Final

from kernel_runtime.store.cipher import Altered, Cipher

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MAGIC: Final = b"\0sealed\0"  # no zlib data begins so
_MARK: Final = "keyed:"

SEALED: Final = (
    ("timelines", ("id",), ("looks",)),
    ("checkpoints", ("id",), ("comment", "label", "code", "variables")),
    ("captures", ("checkpoint", "position"), ("error", "not_captured", "details")),
    ("seals", ("checkpoint",), ("signature",)),
    ("cells", ("checkpoint", "position"), ("source", "details")),
    ("group_records", ("id",), ("comment",)),
)
"""Tables, the columns that name a row, and the sealed ones."""


class Columns:
    """Turns values into what is stored, and back. Without a cipher it changes nothing."""

    def __init__(self, cipher: Cipher | None) -> None:
        self._cipher = cipher

    @property
    def is_sealing(self) -> bool:
        """Whether what is written is sealed."""
        return self._cipher is not None

    def text(self, column: str, value: str | None, *row: object) -> str | bytes | None:
        """What is stored for a text. column: ``table.column``; row: what names the row."""
        if self._cipher is None or value is None:
            return value
        return self._seal(self._cipher, column, value.encode("utf-8", "surrogatepass"), row)

    def read(self, column: str, value: Any, *row: object) -> Any:
        """The reverse. Raises Altered where it was altered, or no key is there to open it."""
        if not isinstance(value, bytes):
            return value
        return self._open(column, value, row).decode("utf-8", "surrogatepass")

    def data(self, column: str, value: bytes, *row: object) -> bytes:
        """What is stored for bytes."""
        return value if self._cipher is None else self._seal(self._cipher, column, value, row)

    def read_data(self, column: str, value: bytes, *row: object) -> bytes:
        """The reverse. Raises Altered."""
        return self._open(column, value, row) if is_sealed(value) else value

    def ref(self, value: str | None) -> str | None:
        """What is stored for the name of a blob; other names stay."""
        if self._cipher is None or value is None or not _DIGEST.fullmatch(value):
            return value
        return self._cipher.hide(value)

    def read_ref(self, value: str | None) -> str | None:
        """The reverse. Raises Altered."""
        if self._cipher is None or value is None or len(value) != 96:
            return value
        return self._cipher.reveal(value)

    def mark(self, digest: str) -> str:
        """What is stored for the digest of a row."""
        return digest if self._cipher is None else _MARK + self._cipher.mark(digest)

    def is_mark_of(self, stored: str, digest: str) -> bool:
        """Whether that is what is, or was before it was encrypted, stored for a digest."""
        return stored == (self.mark(digest) if stored.startswith(_MARK) else digest)

    def _seal(self, cipher: Cipher, column: str, data: bytes, row: tuple[object, ...]) -> bytes:
        return _MAGIC + cipher.seal(data, _purpose(column, row))

    def _open(self, column: str, value: bytes, row: tuple[object, ...]) -> bytes:
        if self._cipher is None and is_sealed(value):
            raise Altered("what is in it is sealed, and encryption.json is not there to open it")
        if self._cipher is None or not is_sealed(value):
            raise Altered(f"{column} is not what is stored there")
        return self._cipher.open(memoryview(value)[len(_MAGIC) :], _purpose(column, row))


def is_sealed(value: object) -> bool:
    """Whether a stored value is a sealed one."""
    return isinstance(value, bytes) and value.startswith(_MAGIC)


class Connection(sqlite3.Connection):
    """A connection that knows how its columns are stored; plain until it is told otherwise."""

    columns = Columns(None)


def seal_rows(connection: Connection) -> int:
    """Seal what is plain in all rows, within the caller's transaction; the number of values."""
    columns, count = connection.columns, 0
    for table, key, names in SEALED:
        where = " AND ".join(f"{name} = ?" for name in key)
        for name in names:
            for *row, value in connection.execute(
                f"SELECT {', '.join(key)}, {name} FROM {table} WHERE {name} IS NOT NULL"
            ).fetchall():
                if is_sealed(value):
                    continue
                store = columns.data if isinstance(value, bytes) else columns.text
                sealed = store(f"{table}.{name}", value, *row)
                connection.execute(f"UPDATE {table} SET {name} = ? WHERE {where}", (sealed, *row))
                count += 1
    for id, position, ref in connection.execute(
        "SELECT checkpoint, position, ref FROM captures WHERE length(ref) = 64"
    ).fetchall():
        connection.execute(
            "UPDATE captures SET ref = ? WHERE checkpoint = ? AND position = ?",
            (columns.ref(ref), id, position),
        )
    for id, digest in connection.execute("SELECT checkpoint, digest FROM seals").fetchall():
        if not digest.startswith(_MARK):
            connection.execute(
                "UPDATE seals SET digest = ? WHERE checkpoint = ?", (columns.mark(digest), id)
            )
    return count


def _purpose(column: str, row: tuple[object, ...]) -> str:
    return f"row {column} {' '.join(map(str, row))}"
