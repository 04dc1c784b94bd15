"""The cases `namespace` as a user meets them: fourteen states of one notebook.

Each is restored from its frozen process; then everything is killed, and each is restored from the
disk alone by another kernel.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import kernels
from tests.kernel.durable_world import durable, kill, timeline
from tests.kernel.namespace_cases import CASES, Case


@dataclass
class Told:
    """What cells printed, or how they failed."""

    number: int
    printed: tuple[str, ...]
    restored: str


class World:
    """One notebook whose timeline has a branch for each case, and the kernel of today."""

    def __init__(self, start: Any, work: Path) -> None:
        work.mkdir()
        (work / "n.ipynb").write_text("{}")
        self._options = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "n.ipynb")}}
        self._start = start
        first = start(*_NO_WAIT, **self._options)
        self.warm = {name: _run(first, case) for name, case in CASES.items() if _here(case)}
        self.captures = {name: durable(first, told.number) for name, told in self.warm.items()}
        self.timeline = timeline(first, "--all")
        kill(first)
        self.cold = start(*_NO_WAIT, **self._options)
        self.cold.run("1")  # what is said at the start is said now

    def restore(self, name: str, how: str = "") -> str:
        """Restore a case's state from the disk; return what is said."""
        return str(self.cold.run(f"%restore {self.warm[name].number} {how}").out)


_NO_WAIT = ("--Supervisor.durability=manual", "--Supervisor.images=False")


def _here(case: Case) -> bool:
    return all(importlib.util.find_spec(name) for name in case.needs)


def _run(notebook: Any, case: Case) -> Told:
    """Run a case from its first cell to its checks, and go back to the start."""
    notebook.cells(*case.cells)
    number = notebook.head()["number"]
    notebook.command("pin", checkpoint=number)
    notebook.cells(*case.after)
    told = _restored(notebook, number, case)
    notebook.run("%restore 0")
    return told


def _restored(notebook: Any, number: int, case: Case) -> Told:
    text = notebook.run(f"%restore {number}").out
    printed = []
    for check in case.checks:
        cell = notebook.run(check, ok=False)
        printed.append(cell.error or cell.out)
        assert not cell.text("stderr"), cell.text("stderr")
    return Told(number, tuple(printed), text)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("cases")
    with pytest.MonkeyPatch.context() as patch, kernels(base, patch) as start:
        yield World(start, base / "work")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.torch if "torch" in case.needs else ())
        for name, case in CASES.items()
    ],
)
def test_namespace(world: World, name: str) -> None:
    case = CASES[name]
    if name not in world.warm:
        pytest.skip(f"missing: one of {', '.join(case.needs)}")
    assert world.warm[name].printed == case.expected
    capture = world.captures[name]
    assert capture["state"] == "ready", capture
    assert sorted(note["subject"] for note in capture["not_captured"]) == sorted(case.lost)
    assert capture["bytes"] < case.most
    told = _restored(world.cold, world.warm[name].number, case)
    assert told.printed == (case.durable or case.expected)
    for lost in case.lost:
        assert f"not brought back: {lost}: " in told.restored
    assert told.restored.count("not brought back") == len(case.lost), told.restored


def test_08_the_list_tells_what_the_disk_does_not_hold(world: World) -> None:
    line = next(line for line in world.timeline.splitlines() if "import sqlite3" in line)
    assert all(name in line.partition("durable without")[2] for name in CASES["08"].lost), line


def test_07_looking_changes_no_file(world: World) -> None:
    number = world.warm["07"].number
    world.restore("07")
    work = world.cold.cwd

    def files() -> dict[str, tuple[bytes, int]]:
        found = {p for p in work.rglob("*") if p.is_file()}
        return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in found}

    before = files()
    assert "held" in world.cold.run(f"%timetravel verify {number}").out
    world.cold.run(f"%timeline {number}")
    world.cold.run(f"%restore {number} --dry-run")
    world.cold.run(f"%restore {number} --only process --dry-run")
    assert files() == before


def test_17_a_helper_that_was_edited_is_named(world: World) -> None:
    world.restore("17")
    (world.cold.cwd / "helper.py").write_text("RATE = 9\nclass Acc: pass\n")
    text = world.restore("17", "--only process")
    assert "helper.py differs from the one that this state was made with" in text
    assert world.cold.run("helper.RATE, isinstance(acc, helper.Acc)").result == "(2, True)"


def test_20_no_handler_twice_after_three_restores(world: World) -> None:
    for _ in range(3):
        world.restore("20")
    cell = world.cold.run("j.run(); print(len(log.handlers), buf.getvalue().count('run 2'))")
    assert (cell.out, cell.text("stderr")) == ("1 1", "")
