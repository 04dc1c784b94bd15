"""Rows that decide what is loaded: a change made past the store is noticed, and stays noticed."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.errors import StoreError
from kernel_runtime.store.keys import Keys, NotAuthentic, NotTrusted
from kernel_runtime.timeline import Capture, Coordinate

NOTEBOOK = "/home/u/nb.ipynb"
A, B = "a" * 64, "b" * 64


@pytest.fixture
def reopen(tmp_path):
    opened = []

    def again(keys="keys"):
        while opened:
            opened.pop().close()
        opened.append(open_store(tmp_path / "store", Keys(tmp_path / keys)))
        return opened[0]

    yield again
    opened.pop().close()


def load(store, epoch="later"):
    return store.load_timeline(NOTEBOOK, "python3", epoch=epoch)


@pytest.fixture
def stored(reopen):
    """Two checkpoints with a namespace each."""
    store = reopen()
    timeline = load(store)
    for ref in (A, B):
        timeline.add(
            created_at=datetime.now(timezone.utc),
            reason="manual",
            coordinate=Coordinate("e"),
            captures=[Capture("namespace", "dill", "ready", 5, ref)],
        )
    store.save(timeline.state, timeline)
    for checkpoint in timeline:
        store.authenticate(timeline.id, checkpoint)
    return timeline


def alter(directory, statement):
    with closing(sqlite3.connect(directory / "store" / FILE_NAME)) as connection:
        connection.execute(statement)
        connection.commit()


def test_after_a_restart_all_is_as_it_was(stored, reopen):
    store = reopen()
    timeline = load(store)
    for checkpoint in timeline:
        store.authenticate(timeline.id, checkpoint)
    changed = timeline.replace(timeline.resolve(1).id, label="L")
    store.save(timeline.state, [changed])
    store.authenticate(timeline.id, changed)


def test_what_was_written_since_the_caller_looked(stored, reopen):
    """A restore looks at a checkpoint while its captures are still being written."""
    store = reopen()
    timeline = load(store)
    seen = timeline.resolve(1)
    store.save(timeline.state, [seen.with_capture(Capture("process", "criu", "ready", 5, B))])
    store.authenticate(timeline.id, seen)
    store.save(timeline.state, [replace(seen, captures=())])
    with pytest.raises(NotAuthentic, match="altered"):
        store.authenticate(timeline.id, seen)


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE captures SET ref = '{B}' WHERE ref = '{A}'",
        "UPDATE checkpoints SET number = 3 - number + 10",
        "UPDATE captures SET engine = 'other'",
        "UPDATE seals SET signature = (SELECT max(signature) FROM seals)",
        "DELETE FROM seals",
    ],
)
def test_an_altered_row_is_noticed_and_never_signed(stored, reopen, tmp_path, statement):
    alter(tmp_path, statement)
    store = reopen()
    for _ in range(2):  # the second time after the altered row was written again
        timeline = load(store)
        refused = 0
        for checkpoint in list(timeline):
            try:
                store.authenticate(timeline.id, checkpoint)
            except NotAuthentic as error:
                assert "Nothing of it was loaded" in str(error)
                refused += 1
            timeline.replace(checkpoint.id, label=f"L{checkpoint.number}")
        assert refused
        store.save(timeline.state, timeline)
        store = reopen()
    store.trust(stored.id)
    timeline = load(store)
    for checkpoint in timeline:
        store.authenticate(timeline.id, checkpoint)


def test_another_user_s_store(stored, reopen):
    store = reopen("other keys")
    timeline = load(store)
    with pytest.raises(NotTrusted, match="#1 is signed with the key"):
        store.authenticate(timeline.id, timeline.resolve(1))
    new = timeline.add(
        created_at=datetime.now(timezone.utc),
        reason="cell",
        coordinate=Coordinate("later"),
        captures=[Capture("namespace", "dill", "ready", 5, A)],
    )
    store.save(timeline.state, [new])
    store.authenticate(timeline.id, new)
    swapped = replace(new, captures=(Capture("namespace", "dill", "ready", 5, B),))
    with pytest.raises(NotAuthentic, match="altered"):
        store.authenticate(timeline.id, swapped)


AS_IN_VERSION_1 = """
DROP TABLE seals; DROP TABLE cells; DROP TABLE group_records; DROP TABLE groups;
ALTER TABLE timelines DROP COLUMN looks; ALTER TABLE timelines DROP COLUMN origin;
PRAGMA user_version = 1;
"""


def test_an_older_database_is_copied_before_it_changes(tmp_path):
    store = open_store(tmp_path / "store", Keys(tmp_path / "keys"))
    timeline = load(store)
    old = timeline.add(
        created_at=datetime.now(timezone.utc), reason="cell", coordinate=Coordinate("e")
    )
    store.save(timeline.state, [old])
    store.close()
    with closing(sqlite3.connect(tmp_path / "store" / FILE_NAME)) as connection:
        connection.executescript(AS_IN_VERSION_1)
    backup = tmp_path / "store" / f"{FILE_NAME}.v1-backup"
    backup.with_name(f"{backup.name}.tmp").write_text("cut short")
    with closing(open_store(tmp_path / "store", Keys(tmp_path / "keys"))) as store:
        assert [c.id for c in load(store)] == [old.id]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert sorted(f.name for f in backup.parent.iterdir() if "backup" in f.name) == [backup.name]
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT id FROM checkpoints").fetchall() == [(old.id,)]


def test_no_copy_no_migration(tmp_path):
    directory = tmp_path / "store"
    open_store(directory, Keys(tmp_path / "keys")).close()
    file = directory / FILE_NAME
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE seals")
        connection.execute("PRAGMA user_version = 1")
    (directory / f"{FILE_NAME}.v1-backup.tmp").mkdir()
    with pytest.raises(StoreError):
        open_store(directory, Keys(tmp_path / "keys"))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
