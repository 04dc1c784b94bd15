"""Killed at every place there is: afterwards the tree is the one before or the one wanted."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
from collections.abc import Callable, Collection

import pytest
from workspace_world import Picture, World, assert_same

from kernel_runtime.engines.workspace import faults, linux
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.model import SnapshotId

Make = Callable[..., World]
PLACES_MAX = 400
READING = ("read", "scan", "visit")
"""Places at which nothing is written; how often they are passed depends on the clock."""


def killed_at(number: int, work: Callable[[], object], ignored: Collection[str] = READING) -> bool:
    """Do work in a child that is killed at its n-th place; False if it got to the end."""
    child = os.fork()
    if child == 0:
        passed = 0

        def count(name: str) -> None:
            nonlocal passed
            passed += name not in ignored
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)

        faults.hook = count
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child failed by itself: {status}"
    return status == signal.SIGKILL


def fill(world: World) -> None:
    world.write("same", "same")
    world.write("text", "one")
    world.write("sub/a", "a")
    world.write("sub/deep/b", "b")
    world.write("gone/x", "x")
    world.write("type", "a file")
    os.link(world.W / "text", world.W / "sub/linked")
    os.symlink("text", world.W / "link")
    os.mkfifo(world.W / "pipe")
    world.write("ro/f", "f")
    os.chmod(world.W / "ro", 0o555)
    os.chmod(world.W / "same", 0o640)
    execute(world, "create table t (n integer)")


def change(world: World) -> None:
    for name in ("text", "sub/a", "sub/new"):
        (world.W / name).unlink(missing_ok=True)
        world.write(name, "two " + name)
    os.chmod(world.W / "ro", 0o755)
    world.write("ro/g", "g")
    os.chmod(world.W / "ro", 0o555)
    os.rename(world.W / "gone", world.W / "moved")
    (world.W / "type").unlink()
    world.write("type/is/a", "directory now")
    (world.W / "link").unlink()
    os.symlink("elsewhere", world.W / "link")
    os.chmod(world.W / "same", 0o600)
    os.mkdir(world.W / "closed", 0o000)
    execute(world, "insert into t values (1)")


def execute(world: World, statement: str) -> None:
    """In a database, which a restore puts back into its own inode once it is committed."""
    connection = sqlite3.connect(world.W / "data.db")
    with connection:
        connection.execute(statement)
    connection.close()


def settle(world: World, before: Picture, wanted: Picture) -> str:
    """Start again after a kill; which of the two trees there is."""
    engine = world.new_engine()
    result = engine.recover()
    engine.close()
    assert not world.leftovers(), result
    now = world.picture()
    if now == before:
        assert result is None or result.outcome == "undone"
        return "before"
    assert_same(wanted, now)
    assert result is None or result.outcome == "finished"
    return "wanted"


def restorer(world: World, target: SnapshotId) -> Callable[[], object]:
    """A restore that is safe to fork: a fresh engine, no watches of the parent's."""

    def work() -> None:
        engine = world.new_engine()
        hook, faults.hook = faults.hook, None
        plan = engine.plan_restore(target)
        faults.hook = hook
        engine.restore(plan)

    return work


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "no-exchange"])
def test_a_restore_killed_at_every_place(
    make_world: Make, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        forbid_flags(monkeypatch)
    world = make_world()
    fill(world)
    one, picture_one = world.capture(), world.picture()
    change(world)
    two, picture_two = world.capture(), world.picture()
    world.engine.close()
    seen: set[str] = set()
    target, before, wanted = one, picture_two, picture_one
    for number in range(1, PLACES_MAX):
        killed = killed_at(number, restorer(world, target.id))
        outcome = settle(world, before, wanted)
        seen.add(outcome)
        if outcome == "wanted":  # now the other way round
            target = two if target is one else one
            before, wanted = wanted, before
        if not killed:
            break
    else:
        pytest.fail(f"more than {PLACES_MAX} places")
    assert seen == {"before", "wanted"}


@pytest.mark.parametrize("at", ["swapped", "metadata", "committed"])
def test_recovery_killed_at_every_place(make_world: Make, at: str) -> None:
    world = make_world()
    fill(world)
    one, picture_one = world.capture(), world.picture()
    change(world)
    two, picture_two = world.capture(), world.picture()
    places = places_of(world, restorer(world, one.id))
    world.restore(two.id)
    world.engine.close()
    last = len(places) - places[::-1].index(at)
    for number in range(1, PLACES_MAX):
        assert killed_at(last, restorer(world, one.id))
        killed = killed_at(number, lambda: recover_only(world))
        outcome = settle(world, picture_two, picture_one)
        assert outcome == ("wanted" if at == "committed" else "before")
        if outcome == "wanted":
            world.engine = world.new_engine()
            world.restore(two.id)
            world.engine.close()
        if not killed:
            return
    pytest.fail(f"more than {PLACES_MAX} places")


def recover_only(world: World) -> None:
    WorkspaceEngine([world.W], world.store, journal_dir=world.base / "journal").recover()


def places_of(world: World, work: Callable[[], object]) -> list[str]:
    """The names of all places that some work passes; the work is done, in a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        passed: list[str] = []
        faults.hook = lambda name: None if name in READING else passed.append(name)
        try:
            work()
            os.write(writing, " ".join(passed).encode("ascii"))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, encoding="ascii") as result:
        names = result.read().split()
    assert os.waitpid(child, 0)[1] == 0
    return names


def forbid_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS: rename knows neither exchange nor no-replace."""
    plain = linux.rename_at

    def rename_at(src_fd: int, src: bytes, dst_fd: int, dst: bytes, flags: int = 0) -> None:
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        plain(src_fd, src, dst_fd, dst)

    monkeypatch.setattr(linux, "rename_at", rename_at)


def test_a_capture_killed_at_every_place(make_world: Make) -> None:
    world = make_world()
    fill(world)
    before = world.picture()
    world.engine.close()

    def capture() -> None:
        world.new_engine().capture()

    number = 1
    while killed_at(number, capture, ignored=()):
        number += 1
    assert number > 5
    assert_same(before, world.picture())
    world.engine = world.new_engine()
    a = world.capture()
    assert not list(world.store.check())
    change(world)
    world.restore(a.id)
    assert_same(before, world.picture())


def test_a_restore_at_work_is_left_alone_by_recover(make_world: Make) -> None:
    world = make_world()
    fill(world)
    one, picture_one = world.capture(), world.picture()
    change(world)
    results: list[object] = []

    def meanwhile(name: str) -> None:
        if name in ("staging", "applying", "commit"):
            faults.hook = None
            results.append(world.new_engine().recover())
            faults.hook = meanwhile

    plan = world.engine.plan_restore(one.id)
    faults.hook = meanwhile
    try:
        world.engine.restore(plan)
    finally:
        faults.hook = None
    assert results == [None, None, None]
    assert_same(picture_one, world.picture())
