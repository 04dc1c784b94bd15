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
        self.timeline = timeline(first)
        kill(first)
        self.cold = start(*_NO_WAIT, **self._options)
        self.greeting = self.cold.run("1").text("stderr")


_NO_WAIT = ("--Supervisor.durability=manual",)


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
@pytest.mark.parametrize("name", CASES)
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
