"""A database that is open in the process that goes back: SQLite writes to it afterwards."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_world import World, picture

from kernel_runtime.engines.workspace import same_inode

Make = Callable[..., World]
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("locked", flush=True)
sys.stdin.read()
"""


def database(path: Path, mode: str = "delete") -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute(f"pragma journal_mode={mode}")
    connection.execute("create table t (n integer)")
    connection.commit()
    return connection


def add(connection: sqlite3.Connection, *numbers: int) -> None:
    connection.executemany("insert into t values (?)", [(n,) for n in numbers])
    connection.commit()


def rows(connection: sqlite3.Connection) -> list[int]:
    return [n for (n,) in connection.execute("select n from t order by n")]


def test_it_keeps_its_inode_and_all_else_is_as_after_any_restore(make_world: Make) -> None:
    world = make_world()
    below = world.W / "data"
    below.mkdir()
    path, text = below / "x.db", below / "x.txt"
    text.write_text("old")
    connection = database(path)
    add(connection, 1)
    path.chmod(0o640)
    os.setxattr(path, "user.k", b"v")
    before, then = picture(world.W), path.stat()
    a = world.capture()
    add(connection, *range(2, 5000))
    text.write_text("new")
    path.chmod(0o600)
    os.removexattr(path, "user.k")
    after = picture(world.W)
    b = world.capture()
    for _ in range(2):
        world.restore(a.id)
        assert picture(world.W) == before
        assert path.stat().st_ino == then.st_ino
        assert rows(connection) == [1]
        world.restore(b.id)
        assert picture(world.W) == after
        assert path.stat().st_ino == then.st_ino
        assert len(rows(connection)) == 4999
    world.restore(a.id)
    add(connection, 7)
    assert rows(connection) == [1, 7]
    world.capture()
    world.restore(b.id)
    assert len(rows(connection)) == 4999


@pytest.mark.parametrize("why", ["locked", "wal", "hard link", "too large", "no database"])
def test_where_it_is_not_done_the_content_is_right(
    make_world: Make, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    world = make_world()
    path = world.W / "x.db"
    connection = database(path, "wal" if why == "wal" else "delete")
    add(connection, 1)
    if why == "wal":
        connection.close()
    if why == "hard link":
        os.link(path, world.W / "y.db")
    if why == "no database":
        path.write_bytes(b"SQLite format 2" + path.read_bytes()[15:])
    before, inode = path.read_bytes(), path.stat().st_ino
    a = world.capture()
    with open(path, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(bytes(4096))
    if why == "locked":
        # in another process: closing any descriptor of the file would drop this one's locks
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout.readline() == b"locked\n"
    if why == "too large":
        monkeypatch.setattr(same_inode, "LARGEST", 100)
    world.restore(a.id)
    if why == "locked":
        holder.communicate(timeout=60)
    assert path.read_bytes() == before
    assert path.stat().st_ino != inode


def test_a_database_without_a_table_yet_is_an_empty_file(make_world: Make) -> None:
    world = make_world()
    path = world.W / "x.db"
    path.touch()
    inode = path.stat().st_ino
    a = world.capture()
    connection = database(path)
    b = world.capture()
    world.restore(a.id)
    assert (path.stat().st_ino, path.stat().st_size) == (inode, 0)
    world.restore(b.id)
    assert path.stat().st_ino == inode
    add(connection, 1)
    assert rows(connection) == [1]


def test_one_that_was_deleted_is_another_file(make_world: Make) -> None:
    world = make_world()
    path = world.W / "x.db"
    add(database(path), 1)
    before = picture(world.W)
    a = world.capture()
    path.unlink()
    world.restore(a.id)
    assert picture(world.W) == before
