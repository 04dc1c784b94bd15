"""Change notices save looking, and never miss."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_world import World, assert_same

from kernel_runtime.engines.workspace import scan, watch
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.store.blobs import BlobStore

Make = Callable[..., World]


def content(world: World, snapshot_id: str, path: bytes) -> bytes:
    return b"".join(world.engine.read_file(snapshot_id, path))


def test_only_what_changed_is_looked_at(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    for number in range(300):
        world.write(f"d{number % 30}/f{number}", str(number))
    assert world.capture().how == "scanned"
    looked: list[bytes] = []
    visit = scan.Scanner.visit

    def count(self: scan.Scanner, state: object, fd: int, name: bytes, depth: int) -> None:
        looked.append(name)
        visit(self, state, fd, name, depth)  # type: ignore[arg-type]

    monkeypatch.setattr(scan.Scanner, "visit", count)
    monkeypatch.setattr(scan.Scanner, "scan", None)
    assert world.capture().changed == 0
    assert not looked
    world.write("d3/f3", "new")
    b = world.capture()
    assert (b.how, b.changed, set(looked)) == ("watched", 1, {b"f3"})


def test_a_write_through_a_name_outside(make_world: Make, base: Path) -> None:
    world = make_world()
    world.write("f", "one")
    os.link(world.W / "f", base / "outside")
    a = world.capture()
    (base / "outside").write_text("two")
    b = world.capture()
    assert b.how == "watched"
    assert content(world, a.id, b"f") == b"one"
    assert content(world, b.id, b"f") == b"two"
    # Going back must not write through the other name.
    world.restore(a.id)
    assert world.read("f") == "one"
    assert (base / "outside").read_text() == "two"


def test_metadata_is_not_changed_through_a_name_outside(make_world: Make, base: Path) -> None:
    world = make_world()
    world.write("f", "one")
    os.link(world.W / "f", base / "outside")
    a = world.capture()
    os.chmod(base / "outside", 0o600)
    world.restore(a.id)
    assert os.stat(world.W / "f").st_mode & 0o777 == 0o644
    assert os.stat(base / "outside").st_mode & 0o777 == 0o600


def test_a_link_to_a_known_file_comes_back(make_world: Make) -> None:
    world = make_world()
    world.write("old/f", "one")
    (world.W / "new").mkdir()
    a = world.capture()
    os.link(world.W / "old/f", world.W / "new/g")
    b = world.capture()
    assert b.how == "watched"
    linked = world.picture()
    world.restore(a.id)
    assert os.stat(world.W / "old/f").st_nlink == 1
    world.restore(b.id)
    assert_same(linked, world.picture())


def test_a_link_in_another_root_comes_back(base: Path) -> None:
    tops = [base / "first", base / "second"]
    for top in tops:
        top.mkdir()
    names = [tops[0] / "f", tops[1] / "g"]
    engine = WorkspaceEngine(tops, BlobStore(base / "store"), journal_dir=base / "journal")
    with contextlib.closing(engine):
        for first, second in (names, names[::-1]):
            first.write_text("one")
            a = engine.capture()
            os.link(first, second)
            b = engine.capture()
            assert b.how == "watched"
            for snapshot, count in ((a, 1), (b, 2)):
                plan = engine.plan_restore(snapshot.id)
                engine.restore(plan, foreign=engine.capture(rules_of=snapshot.id))
                assert os.stat(first).st_nlink == count
            assert os.path.samefile(first, second)
            first.unlink()
            second.unlink()


def test_a_write_through_a_link_made_since(make_world: Make) -> None:
    world = make_world()
    world.write("old/f", "one")
    (world.W / "new").mkdir()
    a = world.capture()
    os.link(world.W / "old/f", world.W / "new/g")
    world.write("new/g", "two")
    b = world.capture()
    assert [content(world, one.id, b"old/f") for one in (a, b)] == [b"one", b"two"]
    world.write("new/g", "three")
    assert content(world, world.capture().id, b"old/f") == b"three"
    (world.W / "new/g").unlink()
    world.write("old/f", "four")
    assert content(world, world.capture().id, b"old/f") == b"four"


def test_the_mode_of_a_fifo_with_two_names(make_world: Make) -> None:
    world = make_world()
    for name in ("old", "new"):
        (world.W / name).mkdir()
        os.mkfifo(world.W / name / "pipe", 0o600)
    a = world.capture()
    apart = world.picture()
    (world.W / "new/pipe").unlink()
    os.link(world.W / "old/pipe", world.W / "new/pipe")
    world.capture()
    os.chmod(world.W / "new/pipe", 0o640)
    b = world.capture()
    together = world.picture()
    assert b.how == "watched"
    modes = [entry.mode for _, path, entry in world.engine.manifest(b.id) if b"pipe" in path]
    assert modes == [0o640, 0o640]
    for snapshot, expected in ((a, apart), (b, together)):
        world.restore(snapshot.id)
        assert_same(expected, world.picture())


def test_one_mode_for_each_of_two_fifos_that_became_one(make_world: Make) -> None:
    world = make_world()
    os.mkfifo(world.W / "f", 0o600)
    os.mkfifo(world.W / "g", 0o640)
    a = world.capture()
    apart = world.picture()
    (world.W / "g").unlink()
    os.link(world.W / "f", world.W / "g")
    world.restore(a.id)
    assert_same(apart, world.picture())


def test_a_mapped_file_is_read_again_when_it_is_named(make_world: Make) -> None:
    world = make_world()
    world.write("m", b"0" * 4096)
    fd = os.open(world.W / "m", os.O_RDWR)
    view = mmap.mmap(fd, 4096)
    os.close(fd)
    state = os.stat(world.W / "m")
    world.engine.mapped_files = lambda: [(state.st_dev, state.st_ino)]
    for number in range(5):
        view[0] = number
        snapshot = world.engine.capture()
        assert content(world, snapshot.id, b"m")[0] == number
    view[0] = 55
    (change,) = world.engine.plan_restore(snapshot.id).changes
    assert change.path == b"m"
    assert [one.path for one in world.engine.current_changes(snapshot.id)] == [b"m"]
    view[0] = 77
    view.close()
    # The end of the mapping is noticed by itself.
    assert content(world, world.capture().id, b"m")[0] == 77


def test_a_moved_directory_is_not_read_again(make_world: Make) -> None:
    world = make_world()
    for number in range(50):
        world.write(f"old/sub/{number}", str(number) * 1000)
    world.capture()
    time.sleep(0.05)
    world.capture()
    read = world.engine._capturer.content.read_bytes
    os.rename(world.W / "old", world.W / "new")
    b = world.capture()
    assert world.engine._capturer.content.read_bytes == read
    assert content(world, b.id, b"new/sub/7") == b"7" * 1000
    world.write("new/sub/7", "later")
    assert content(world, world.capture().id, b"new/sub/7") == b"later"
    assert {p for _, p, _ in world.engine.manifest(b.id)} >= {b"new", b"new/sub"}


def test_more_changes_than_the_kernel_can_report(make_world: Make) -> None:
    world = make_world()
    world.capture()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 20_000:
        pytest.skip("missing ability: a queue of notices that a test can fill")
    os.mkdir(world.W / "d")
    world.capture()
    for number in range(limit // 2 + 10):
        (world.W / "d" / str(number)).touch()
    world.write("d/0", "content")
    b = world.capture()
    assert b.how == "scanned"
    assert b.files == limit // 2 + 10
    world.write("d/0", "after")
    c = world.capture()
    assert c.how == "watched"
    assert content(world, c.id, b"d/0") == b"after"


@pytest.mark.parametrize("limit", [0, 3, 8])
def test_without_enough_watches_everything_is_scanned(
    make_world: Make, limit: int, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    file = base / "limit"
    file.write_text(str(limit * 2))
    monkeypatch.setattr(watch, "_LIMIT", file)
    world = make_world()
    for number in range(6):
        world.write(f"d{number}/f", "one")
    before = world.picture()
    a = world.capture()
    for number in range(6):
        world.write(f"d{number}/f", "two")
        world.write(f"new{number}/f", "two")
    b = world.capture()
    assert b.how == "scanned"
    assert "watches" in world.engine.scanning_because
    assert b.changed >= 12
    world.restore(a.id)
    assert_same(before, world.picture())


def test_the_index_saves_reading_after_a_restart(make_world: Make) -> None:
    world = make_world()
    for number in range(40):
        world.write(f"d/{number}", str(number) * 2000)
    os.link(world.W / "d/3", world.W / "d/link")
    past = world.capture()
    time.sleep(0.05)
    world.reopen()
    a = world.capture()
    assert world.engine._capturer.content.read_bytes == 0
    assert not world.engine.diff(past.id, a.id)
    # What the store has lost meanwhile is read again.
    world.engine.close()
    shutil.rmtree(world.base / "store/blobs")
    os.mkdir(world.base / "store/blobs")
    world.store = type(world.store)(world.base / "store")
    world.engine = world.new_engine()
    before = world.picture()
    b = world.capture()
    world.write("d/3", "spoilt")
    world.restore(b.id)
    assert_same(before, world.picture())


@pytest.mark.parametrize("place", ["elsewhere", "W/d/there"])
def test_a_mount_costs_no_reading_after_a_restart(make_world: Make, place: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("missing ability: to mount")
    world = make_world()
    for number in range(10):
        world.write(f"d/{number}", str(number) * 2000)
    world.capture()
    world.write("d/3", "written late")
    time.sleep(0.05)
    where = world.base / place
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(where)], check=True)
    try:
        world.reopen()
        a = world.capture()
    finally:
        subprocess.run(["umount", str(where)], check=True)
    assert world.engine._capturer.content.read_bytes == len("written late")
    assert content(world, a.id, b"d/3") == b"written late"


def test_mounts_below_a_root_are_seen_and_others_cost_nothing(make_world: Make) -> None:
    if os.geteuid() != 0:
        pytest.skip("missing ability: to mount")
    world = make_world()
    world.write("d/e f/g", "below")
    (world.base / "elsewhere").mkdir()
    world.capture()
    for place, how in (("elsewhere", "watched"), ("W/d/e f", "scanned")):
        where = world.base / place
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(where)], check=True)
        (where / "h").write_text("in it")
        a = world.capture()
        assert a.how == how
        subprocess.run(["umount", str(where)], check=True)
        assert world.capture().how == how
        assert world.capture().how == "watched"
    world.restore(a.id)


def test_a_directory_deleted_and_made_again(make_world: Make) -> None:
    world = make_world()
    for number in range(30):
        world.write("d/e/f", str(number))
        a = world.capture()
        assert content(world, a.id, b"d/e/f") == str(number).encode()
        shutil.rmtree(world.W / "d")
        if number % 3 == 0:
            world.capture()


def test_the_workspace_itself_is_deleted(make_world: Make) -> None:
    world = make_world()
    world.write("d/f", "one")
    before = world.picture()
    a = world.capture()
    shutil.rmtree(world.W)
    gone = world.capture()
    assert [one.reason for one in gone.left_out] == ["the directory is not there"]
    world.restore(a.id)
    assert_same(before, world.picture())
    world.write("d/f", "two")
    b = world.capture()
    assert content(world, b.id, b"d/f") == b"two"
