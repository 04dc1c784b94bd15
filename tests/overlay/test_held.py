"""A capture while processes in the background write: the layer stays what it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from environment_world import Environment, run_as

from kernel_runtime.engines.overlay.held import go_on, stop

WHO = [pytest.param("root", marks=pytest.mark.root), "user"]


@pytest.fixture(params=WHO)
def inside(
    request: pytest.FixtureRequest, ability: Callable[[str, bool], None]
) -> Callable[[Callable[[Environment], None]], None]:
    """Runs a test in a world of its own, as root and as an ordinary user."""
    who = request.param
    ability("root", who == "user" or os.geteuid() == 0)

    def run(test: Callable[[Environment], None]) -> None:
        def work() -> None:
            world = Environment()
            try:
                (world.E / "d").mkdir()
                (world.E / "base").write_text("base")
                world.start()
                test(world)
            finally:
                world.close()

        run_as(who, work)

    return run


def check(world: Environment, *rest: Callable[[], object]) -> None:
    """What is written after a capture is seen, and not in the capture."""
    first = world.capture()
    for step in rest:
        step()
    assert world.ask("poke") == []
    assert world.seen() != first.seen, "nothing was written"
    second = world.capture()
    assert world.ask("poke") == []
    third = world.capture()
    for held in (first, second, third, first):
        world.restore(held)
        assert world.seen() == held.seen


@pytest.mark.parametrize("kind", ["appends to", "maps"])
def test_a_file_is_written(inside, kind):
    def test(world):
        assert world.ask("hold", top=str(world.E), kind=kind, path="/d/log")
        check(world)

    inside(test)


@pytest.mark.parametrize("kind", ["appends to", "maps"])
def test_a_file_of_the_host_is_written(inside, kind):
    def test(world):
        assert world.ask("hold", top=str(world.E), kind=kind, path="/base")
        check(world)
        assert (world.E / "base").read_text() == "base"

    inside(test)


def test_several_names_of_one_file(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")
        world.ops(world.E, ["link", "/d/log", "/other"], ["link", "/d/log", "/d/third"])
        check(world)
        # they are one file still
        assert world.ask("shell", code=f"result = os.stat({str(world.E)!r} + '/other').st_ino")

    inside(test)


def test_a_log_is_rotated_between_captures(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")
        check(
            world,
            lambda: world.ops(
                world.E, ["rename", "/d/log", "/d/log.1"], ["write", "/d/log", "new"]
            ),
        )

    inside(test)


def test_two_processes_write_what_had_one_name(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")

        def rotate() -> None:
            world.ops(world.E, ["rename", "/d/log", "/d/log.1"])
            world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")

        check(world, rotate)

    inside(test)


def test_the_name_is_deleted_and_the_file_has_another(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")
        world.ops(world.E, ["link", "/d/log", "/kept"], ["unlink", "/d/log"])
        check(world)

    inside(test)


def test_the_last_name_is_deleted(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")
        world.ops(world.E, ["unlink", "/d/log"])
        first = world.capture()
        world.ask("poke")
        assert world.capture().captured.fresh == []
        world.restore(first)
        assert world.seen() == first.seen

    inside(test)


def test_a_process_works_in_a_directory(inside):
    def test(world):
        world.ops(world.E, ["write", "/d/f", "f"])
        assert world.ask("hold", top=str(world.E), kind="works in", path="/d")
        check(world)
        assert any(kind == "copied" and "python" in text for kind, _, text in world.notes), (
            world.notes
        )

    inside(test)


def test_a_file_in_a_closed_directory(inside):
    def test(world):
        world.ask("hold", top=str(world.E), kind="appends to", path="/d/log")
        world.ops(world.E, ["chmod", "/d", 0o555], ["utime", "/d", 10**18])
        check(world)

    inside(test)


def test_a_process_in_a_root_of_its_own(inside):
    """As root: chroot; an ordinary user may do so in a user namespace."""

    def test(world):
        world.ops(world.E, ["write", "/d/f", "f"])
        assert world.ask("hold", top=str(world.E), kind="is locked in", path="/d")
        check(world)

    inside(test)


def test_a_process_with_mounts_of_its_own(inside):
    def test(world):
        world.ops(world.E, ["write", "/d/f", "f"])
        if world.ask("hold", top=str(world.E), kind="has its own mounts", path="/d/log"):
            check(world)

    inside(test)


def test_a_process_that_multiplies(inside):
    """Whoever is started while the others are being stopped is stopped too."""

    def test(world):
        world.ask("multiply", path=str(world.E / "d"))
        helds = [world.capture() for _ in range(10)]
        for held in helds:
            world.restore(held)
            assert len(world.seen()) >= 1

    inside(test)


THREADS = """
import threading
def spin():
    while True: pass
for _ in range(40): threading.Thread(target=spin, daemon=True).start()
print("up", flush=True)
spin()
"""


def test_all_threads_have_stopped_however_busy_the_machine_is():
    """One that has not had a processor since may be in the middle of opening a file."""
    with subprocess.Popen(
        [sys.executable, "-c", THREADS], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        try:
            tasks = Path(f"/proc/{child.pid}/task")
            for _ in range(20):
                assert stop([child.pid]) == [child.pid]
                stats = [(task / "stat").read_text() for task in tasks.iterdir()]
                assert {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}
                go_on([child.pid])
        finally:
            child.kill()
