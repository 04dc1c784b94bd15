"""A database that cannot be used when a kernel or a command opens the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_world import Session

from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.errors import DatabaseDamaged, StoreError


def test_a_database_that_was_emptied_is_no_new_one(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.write("f", "content")
    session.checkpoint(b"variables")
    session.store.close()
    path = session.directory / FILE_NAME
    kept = path.read_bytes()
    path.write_bytes(b"")  # as a full disk, or a careless copy, leaves it
    for _ in range(2):
        with pytest.raises(DatabaseDamaged, match="it is empty, and content that it listed"):
            open_store(session.directory, session.keys)
    path.write_bytes(kept)
    with closing(open_store(session.directory, session.keys)) as store:
        assert [info.checkpoints for info in store.timelines()] == [1]


def test_an_empty_database_of_an_empty_store_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch(0o600)
    tmp_path.chmod(0o700)
    with closing(open_store(tmp_path)) as store:
        assert store.timelines() == []


def test_one_that_another_program_has_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_runtime.store.database_file.BUSY_TIMEOUT_S", 0.1)
    session = Session(tmp_path)
    session.checkpoint()
    session.store.close()
    with closing(sqlite3.connect(session.directory / FILE_NAME)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(StoreError, match=r"another program has it locked.*try again"),
            closing(open_store(session.directory, session.keys)) as store,
        ):
            store.load_timeline(str(session.notebook), "python3", epoch="f")
    with closing(open_store(session.directory, session.keys)) as store:
        assert store.load_timeline(str(session.notebook), "python3", epoch="f").head is not None
