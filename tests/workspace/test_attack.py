"""Another program swaps directories for symlinks while a restore runs: nothing leaves the root."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from workspace_world import Picture, World, picture

from kernel_runtime.engines.workspace import anchor, faults
from kernel_runtime.engines.workspace.errors import WorkspaceRestoreFailed

Make = Callable[..., World]


def attack(w: Path, victim: Path, moved: Path) -> int:
    """A process that swaps W/data with a link to victim, over and over; its pid."""
    child = os.fork()
    if child:
        return child
    data = w / "data"
    try:
        while True:
            # The restore may put something here in between; go on from what there is.
            with contextlib.suppress(OSError):
                os.rename(data, moved)
                os.symlink(victim, data)
                os.unlink(data)
                os.rename(moved, data)
                continue
            with contextlib.suppress(OSError):
                if data.is_symlink():
                    os.unlink(data)
                if moved.exists() and not data.exists():
                    os.rename(moved, data)
    finally:
        os._exit(1)


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_looping_attacker(make_world: Make, base: Path, rounds: int) -> None:
    world = make_world()
    victim, moved = base / "victim", base / "outside"
    for name in ("sub/a.txt", "ini", "only/here"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("precious")
    moved.mkdir()
    for number in range(20):
        world.write(f"data/sub/{number}", "one")
    world.write("data/sub/a.txt", "inside")
    one = world.capture()
    for number in range(20):
        world.write(f"data/sub/{number}", "two")
    world.write("data/only/new", "two")
    two = world.capture()
    before = picture(victim)
    outcomes = []
    for round_ in range(rounds):
        attacker = attack(world.W, victim, moved / "data")
        try:
            world.restore((one, two)[round_ % 2].id)
            outcomes.append("restored")
        except WorkspaceRestoreFailed:
            outcomes.append("failed")
        finally:
            os.kill(attacker, signal.SIGKILL)
            os.waitpid(attacker, 0)
        assert picture(victim) == before
        if (world.W / "data").is_symlink():
            os.unlink(world.W / "data")
        if (moved / "data").exists() and not (world.W / "data").exists():
            os.rename(moved / "data", world.W / "data")
        world.engine.recover()
        # What was outside while the restore ran is not one of its works.
        assert sorted(os.listdir(moved)) in ([], ["data"])
        for name in picture(moved):
            assert b".timetravel" not in name
    assert outcomes
    if (moved / "data").exists():
        return  # the restore made its own, the attacker holds the old one: both are whole
    world.restore(one.id)
    assert world.read("data/sub/a.txt") == "inside"
    assert all(world.read(f"data/sub/{number}") == "one" for number in range(20))
    assert picture(victim) == before


def test_the_swap_between_two_steps(
    make_world: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, but at the worst moments, which a loop meets by chance only."""
    monkeypatch.setattr(anchor, "_ATTEMPTS", 5)
    world = make_world()
    victim = base / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "sub/a").write_text("precious")
    world.write("data/sub/a", "one")
    world.write("data/sub/b", "one")
    one = world.capture()
    world.write("data/sub/a", "two")
    world.write("data/sub/b", "two")
    before = picture(victim)
    for place in ("staging", "stage", "applying", "swap", "swapped", "metadata", "commit"):
        world.write("data/sub/a", "two")
        world.write("data/sub/b", "two")
        plan = world.engine.plan_restore(one.id)
        done: list[str] = []

        def strike(name: str, place: str = place, done: list[str] = done) -> None:
            if name == place and not done:
                done.append(name)
                os.rename(world.W / "data", base / "away")
                os.symlink(victim, world.W / "data")

        def mend(name: str, done: list[str] = done) -> None:
            if len(done) == 1 and name in ("undo", "removed"):
                done.append(name)
                os.unlink(world.W / "data")
                os.rename(base / "away", world.W / "data")

        faults.hook = in_turn(mend, strike)
        away = picture(world.W / "data")
        try:
            world.engine.restore(plan)
        except WorkspaceRestoreFailed:
            pass
        finally:
            faults.hook = None
        assert picture(victim) == before, place
        if (base / "away").exists():
            # Nothing was done to it out there; what was done before stays if it was all.
            done_before = place in ("metadata", "commit")
            if not done_before:
                assert without_times(picture(base / "away")) == without_times(away), place
            assert picture(base / "away").keys() == away.keys(), place
            if (world.W / "data").is_symlink():
                os.unlink(world.W / "data")
                os.rename(base / "away", world.W / "data")
        world.engine.recover()
        world.restore(one.id)
        assert world.read("data/sub/a") == world.read("data/sub/b") == "one"
        assert not world.leftovers()


def without_times(found: Picture) -> Picture:
    """A step that was taken back leaves no trace but the directory's time."""
    return {path: (*one[:5], *one[6:]) for path, one in found.items()}


def in_turn(*hooks: Callable[[str], None]) -> Callable[[str], None]:
    def hook(name: str) -> None:
        for one in hooks:
            one(name)

    return hook
