"""The store on real files: what is saved comes back, as a whole or not at all."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_runtime.linux import boot_id
from kernel_runtime.store import filesystem_type, locks, schema
from kernel_runtime.store.database import open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.errors import StoreError, TimelineInUse
from kernel_runtime.store.paths import (
    store_directory,
)
from kernel_runtime.timeline import Capture, Coordinate, Note

NOTEBOOK = "/home/u/nb.ipynb"


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "deep" / "store"


@pytest.fixture
def store(directory):
    store = open_store(directory)
    yield store
    store.close()


def reopened(store):
    store.close()
    return open_store(store.directory)


def elsewhere(code: str, directory: Path, **options) -> subprocess.Popen:
    """Run code in another process; ``store`` is open there."""
    head = (
        "import sys; from pathlib import Path; from datetime import datetime, timezone\n"
        "from kernel_runtime.store.database import open_store\n"
        "from kernel_runtime.timeline import Capture, Coordinate\n"
        "store = open_store(Path(sys.argv[1]))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        **options,
    )


def test_everything_of_a_checkpoint_comes_back(store, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    note = Note("child process", "1 (sleep)", "gone")
    first = add(timeline, variables={"x": {"type": "int", "fingerprint": {"full": "1"}}})
    second = add(
        timeline,
        comment='日本 "quoted"\n',
        label="L",
        pinned=True,
        reason="manual",
        code="x = 1",
        coordinate=Coordinate("e", 2, 3, "cell", "msg"),
        captures=[
            Capture("filesystem", "workspace", "ready", 5, "snap", None, (note,), {"k": [1]}),
            Capture("process", "fork", "ready", 7, "sock"),
        ],
    )
    safety = add(timeline, reason="safety")
    timeline.move_head(second.id)
    store.save(timeline.state, [first, second, safety])

    again = reopened(store).load_timeline(NOTEBOOK, "python3", epoch="e")
    assert again.state == timeline.state
    assert [dict(c.variables) for c in again] == [dict(c.variables) for c in timeline]
    assert [c.captures for c in again] == [c.captures for c in timeline]
    assert [(c.id, c.comment, c.label, c.coordinate, c.created_at) for c in again] == [
        (c.id, c.comment, c.label, c.coordinate, c.created_at) for c in timeline
    ]


def test_changes_and_deletions_are_one_transaction(store, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    one, two, three = (add(timeline, variables={"x": {"type": "int"}}) for _ in range(3))
    store.save(timeline.state, [one, two, three])
    timeline.set_capture(three.id, Capture("process", "fork", "ready"))
    gone = timeline.delete(two.id)
    store.save(timeline.state, gone.rehung, deleted_ids=[two.id])

    again = reopened(store).load_timeline(NOTEBOOK, "python3", epoch="epoch")
    assert again.parents() == {one.id: None, three.id: one.id}
    assert again[three.id].capture("process").state == "ready"
    assert again[three.id].variables["x"] == {"type": "int"}


def test_a_failed_save_leaves_nothing_of_it(store, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    good = add(timeline)
    store.save(timeline.state, [good])
    before = timeline.state
    new = add(timeline)
    clash = add(timeline, id="x" * 32)
    same_number = Capture("process", "fork", bytes=object())  # not a thing that SQLite holds
    broken = timeline.set_capture(clash.id, same_number)
    with pytest.raises(StoreError, match="session runs on"):
        store.save(timeline.state, [new, broken])
    again = reopened(store).load_timeline(NOTEBOOK, "python3", epoch="e")
    assert again.state == before
    assert [c.id for c in again] == [good.id]


def test_frozen_processes_of_another_epoch_are_gone(store, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="old")
    captures = [
        Capture("process", "fork", "ready", 5, "sock"),
        Capture("process", "image", "pending"),
        Capture("filesystem", "workspace", "ready", 3, "snap"),
        Capture("namespace", "dill", "failed", error="why"),
    ]
    checkpoint = add(timeline, coordinate=Coordinate("old"), captures=captures)
    store.save(timeline.state, [checkpoint])
    for _ in range(2):  # also when it is read once more
        store = reopened(store)
        found = store.load_timeline(NOTEBOOK, "python3", epoch="new")[checkpoint.id].captures
        assert [(c.engine, c.state, c.error) for c in found] == [
            ("fork", "evicted", "the kernel was restarted"),
            ("image", "failed", "the kernel ended before it was ready"),
            ("workspace", "ready", None),
            ("dill", "failed", "why"),
        ]


def test_a_notebook_and_kernel_name_have_one_timeline(store):
    first = store.load_timeline(NOTEBOOK, "python3", epoch="e").id
    assert store.load_timeline(NOTEBOOK, "other", epoch="e").id != first
    assert store.load_timeline(None, "python3", epoch="e").id != first
    store = reopened(store)
    assert store.load_timeline(NOTEBOOK, "python3", epoch="e").id == first
    assert len(store.timelines()) == 3


def test_a_notebook_is_known_through_a_symlink_and_by_any_bytes(store, tmp_path):
    real = tmp_path / os.fsdecode(b"r\xff")
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    id = store.load_timeline(str(real / "nb.ipynb"), "python3", epoch="e").id
    store = reopened(store)
    assert store.load_timeline(str(tmp_path / "link" / "nb.ipynb"), "python3", epoch="e").id == id
    assert store.timelines()[0].path == str(real / "nb.ipynb")


def test_a_timeline_in_use_is_refused_and_freed_by_any_end(store, directory):
    other = elsewhere(
        f"store.load_timeline({NOTEBOOK!r}, 'python3', epoch='o'); print('got it', flush=True)\n"
        "sys.stdin.read()",
        directory,
        stdin=subprocess.PIPE,
    )
    assert other.stdout.readline() == "got it\n"
    with pytest.raises(TimelineInUse, match=f"process {other.pid} on "):
        store.load_timeline(NOTEBOOK, "python3", epoch="e")
    assert [info.in_use for info in store.timelines()] == [True]
    own = store.load_timeline(None, "python3", epoch="e")
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert [info.in_use for info in store.timelines()] == [False, True]
    assert store.load_timeline(NOTEBOOK, "python3", epoch="e").id != own.id
    with pytest.raises(TimelineInUse, match="this process"):
        store.load_timeline(NOTEBOOK, "python3", epoch="e")


def test_purge_takes_what_has_no_notebook_and_no_supervisor(store, directory, add):
    kept = store.load_timeline(NOTEBOOK, "python3", epoch="e").id
    mine = store.load_timeline(None, "python3", epoch="e").id
    other = elsewhere(
        "t = store.load_timeline(None, 'python3', epoch='o')\n"
        "c = t.add(created_at=datetime.now(timezone.utc), reason='cell',"
        " coordinate=Coordinate('o'), captures=[Capture('filesystem', 'workspace', 'ready',"
        " ref='snap')])\n"
        "store.save(t.state, [c]); print(t.id, flush=True); sys.stdin.read()",
        directory,
        stdin=subprocess.PIPE,
    )
    its = other.stdout.readline().strip()
    assert store.references("filesystem", "workspace") == {"snap"}
    assert store.purge() == []
    other.kill()
    other.communicate()
    (gone,) = store.purge()
    assert gone.id == its
    assert [capture.ref for capture in gone.captures] == ["snap"]
    assert {info.id for info in store.timelines()} == {kept, mine}
    assert store.references("filesystem", "workspace") == set()
    assert not (directory / "locks" / f"{its}.lock").exists()


def test_saving_to_a_deleted_timeline_says_so(store, directory, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    with sqlite3.connect(directory / FILE_NAME) as connection:
        connection.execute("DELETE FROM timelines")
    with pytest.raises(StoreError, match="was deleted while this kernel ran"):
        store.save(timeline.state, [add(timeline)])


def test_modes_do_not_depend_on_the_umask(directory):
    directory.parent.mkdir()
    old = os.umask(0)
    try:
        store = open_store(directory)
        store.load_timeline(NOTEBOOK, "python3", epoch="e")
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (directory, *directory.rglob("*"))}
    store.close()
    assert modes.pop("store") == modes.pop("locks") == 0o700
    assert f"{FILE_NAME}-wal" in modes
    assert set(modes.values()) == {0o600}
    directory.chmod(0o755)
    open_store(directory).close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_is_not_ours_is_left_alone(directory, tmp_path):
    directory.mkdir(parents=True)
    path = directory / FILE_NAME
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE something (x)")
    connection.close()
    with pytest.raises(StoreError, match="something else"):
        open_store(directory)
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="is damaged"):
        open_store(directory)
    assert path.read_bytes().startswith(b"not a database")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="JUPYTER_TIMETRAVEL_STORE"):
        open_store(tmp_path / "file")


@pytest.mark.root
def test_a_directory_of_another_user_is_refused(directory):
    directory.mkdir(parents=True)
    os.chown(directory, 12345, 12345)
    with pytest.raises(StoreError, match="another user"):
        open_store(directory)
    assert list(directory.iterdir()) == []


def test_a_newer_schema_is_refused_and_an_older_one_migrated(store, directory):
    timeline_id = store.load_timeline(NOTEBOOK, "python3", epoch="e").id
    store.close()
    path = directory / FILE_NAME
    connection = sqlite3.connect(path, isolation_level=None)
    more = (*schema.MIGRATIONS, ("ALTER TABLE timelines ADD COLUMN extra TEXT", "not sql"))
    with pytest.raises(sqlite3.OperationalError):
        schema.prepare(connection, path, more)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(timelines)")]
    assert "extra" not in columns
    more = (*schema.MIGRATIONS, ("ALTER TABLE timelines ADD COLUMN extra TEXT",))
    schema.prepare(connection, path, more)
    assert connection.execute("SELECT id, extra FROM timelines").fetchall() == [(timeline_id, None)]
    connection.close()
    with pytest.raises(StoreError, match="newer jupyter_timetravel"):
        open_store(directory)


def test_a_killed_writer_leaves_whole_checkpoints_only(store, directory):
    """The writer is killed in the midst of writing; each number it told must be there, complete."""
    timeline_id = store.load_timeline(NOTEBOOK, "python3", epoch="e").id
    store.close()
    code = (
        f"t = store.load_timeline({NOTEBOOK!r}, 'python3', epoch='e')\n"
        "while True:\n"
        "    c = t.add(created_at=datetime.now(timezone.utc), reason='cell',"
        " coordinate=Coordinate('e'), variables={f'v{i}': {'value': str(i)} for i in range(50)},"
        " captures=[Capture('process', 'fork'), Capture('filesystem', 'workspace')])\n"
        "    store.save(t.state, [c]); print(c.number, flush=True)\n"
    )
    told = 0
    for round_number in range(6):
        writer = elsewhere(code, directory)
        for _ in range(1 + 7 * round_number):
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate()
        told = max([told, *(int(n) for n in rest.splitlines(keepends=True) if n.endswith("\n"))])

        store = open_store(directory)
        timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
        numbers = [checkpoint.number for checkpoint in timeline]
        # One more may have been written and not yet told.
        assert numbers in ([*range(1, told + 1)], [*range(1, told + 2)])
        assert timeline.id == timeline_id
        assert timeline.head.number == numbers[-1] == timeline.state.next_number - 1
        assert all(len(c.captures) == 2 and len(c.variables) == 50 for c in timeline)
        told = numbers[-1]
        store.close()


def test_a_full_disk_refuses_the_save_and_nothing_else(store, directory, add):
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    first = add(timeline)
    store.save(timeline.state, [first])
    store._connection.execute("PRAGMA max_page_count = 1")  # SQLite answers as for a full disk
    state = timeline.state
    large = add(timeline, comment=os.urandom(200_000).hex())
    with pytest.raises(StoreError, match="full"):
        store.save(timeline.state, [large])
    again = reopened(store).load_timeline(NOTEBOOK, "python3", epoch="e")
    assert again.state == state


def test_a_lock_says_who_has_it_and_in_which_run_of_the_machine(tmp_path):
    lock = tmp_path / "a.lock"
    assert locks.acquire(lock)
    try:
        text = lock.read_text()
    finally:
        locks.release(lock)
    assert text.startswith(f"process {os.getpid()} on {socket.gethostname()} since 2")
    assert text.endswith(f", boot {boot_id()}") and boot_id()
    assert locks.holder(lock) == f" ({text.partition(', boot')[0]})"


def test_locks_know_a_replaced_file(tmp_path):
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    assert locks.acquire(path)
    assert not locks.acquire(path)
    locks.release(path, remove=True)
    locks.release(path)
    assert not path.exists()
    assert locks.acquire(path)
    locks.release(path)


MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:45 / /home rw shared:2 master:1 - nfs4 server:/home rw
31 30 0:46 / /home/u/scratch\\040disk rw - xfs /dev/sdb rw
32 22 0:47 / /mnt rw - fuse.sshfs x rw
33 22 0:48 / /over rw - nfs server:/o rw
34 22 0:49 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib", False),
        ("/home/u", True),
        ("/homework", False),
        ("/home/u/scratch disk/store", False),
        ("/mnt/x", True),
        ("/over/x", False),
    ],
)
def test_network_filesystems_are_told_by_their_mount(tmp_path, path, expected):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    assert filesystem_type.is_network(Path(path), table) is expected
    assert filesystem_type.is_network(Path(path), tmp_path / "none") is False
    assert filesystem_type.name(Path("/home/u"), table) == "nfs4"


def test_on_a_network_filesystem_the_journal_is_a_plain_one(directory, monkeypatch, add):
    monkeypatch.setattr(filesystem_type, "is_network", lambda directory: True)
    store = open_store(directory)
    timeline = store.load_timeline(NOTEBOOK, "python3", epoch="e")
    store.save(timeline.state, [add(timeline, reason="manual")])
    assert not (directory / f"{FILE_NAME}-wal").exists() and store.journal == "truncate"
    assert len(reopened(store).load_timeline(NOTEBOOK, "python3", epoch="e")) == 1


def test_the_store_is_where_it_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "s"))
    assert store_directory() == tmp_path / "s"
    monkeypatch.delenv("JUPYTER_TIMETRAVEL_STORE")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "d"))
    assert store_directory() == tmp_path / "d" / "timetravel"


def test_a_timeline_that_lost_a_checkpoint_can_be_read(store, add):
    """Whatever a kill, or a hand, has left: its children move up, and the rest is there."""
    timeline = store.load_timeline(NOTEBOOK, "k", epoch="e1")
    kept = [add(timeline) for _ in range(4)]
    store.save(timeline.state, kept)
    path = store.directory / FILE_NAME
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM checkpoints WHERE id = ?", (kept[1].id,))
    connection.close()
    again = open_store(store.directory)
    found = again.load_timeline(NOTEBOOK, "k", epoch="e1")
    assert [c.id for c in found] == [kept[0].id, kept[2].id, kept[3].id]
    assert found[kept[2].id].parent == kept[0].id
    assert found.head is not None and found.head.id == kept[3].id
    again.close()
