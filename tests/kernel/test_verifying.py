"""What is on the disk is loaded for real: what does not hold is named, and the session goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.durable_world import damage, durable, namespace

_NO_IMAGES = "--Supervisor.images=False"


def blobs(store: Path) -> dict[Path, int]:
    """The store's blobs of variables, and their sizes."""
    found = (path for path in store.glob("namespaces/blobs/*/*") if path.is_file())
    return {path: path.stat().st_size for path in found}


def verified_at(notebook: Any, number: int) -> str | None:
    record = notebook.command("get", checkpoint=number)["checkpoint"]
    at = namespace(record).get("verified_at")
    return None if at is None else str(at)


def test_what_does_not_hold_is_named_and_loses_its_date(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    manual = ("--Supervisor.durability=manual", _NO_IMAGES)
    notebook = start_notebook(*manual, **document)
    notebook.run("import os; x = os.urandom(300_000); y = [1]; z = y")
    notebook.run("%checkpoint one")
    assert durable(notebook, 2)["state"] == "ready"
    notebook.run("%timetravel verify 2")
    assert verified_at(notebook, 2)
    sizes = blobs(tmp_path / "store")
    largest = max(sizes, key=lambda path: sizes[path])
    damage([largest])
    told = notebook.run("%timetravel verify 2").out
    assert "x: " in told and "is damaged" in told and "1 with problems" in told, told
    assert verified_at(notebook, 2) is None
    assert notebook.run("len(x), z is y").result == "(300000, True)"
    damage([largest])  # the bit is as it was
    assert "all held" in notebook.run("%timetravel verify 2").out
    assert verified_at(notebook, 2)
    damage(blobs(tmp_path / "store"))
    told = notebook.run("%timetravel verify 2").out
    assert "the saved variables cannot be read" in told.lower() and "1 with problems" in told, told


def test_another_value_than_the_sessions_is_named(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """It loads, so only comparing finds it."""
    manual = ("--Supervisor.durability=manual", _NO_IMAGES)
    notebook = start_notebook(*manual, **document)
    notebook.run(
        "class Other:\n    def __reduce__(self): return int, ('5',)\nodd = Other(); even = [2]"
    )
    notebook.run("%checkpoint one")
    assert durable(notebook, 2)["state"] == "ready"
    told = notebook.run("%timetravel verify 2").out
    assert "odd: it has another value than the session had" in told and "even" not in told, told
    assert "#1" in notebook.run("%timetravel verify 1").out
    assert "not on the disk" in notebook.run("%timetravel verify 1").out


@pytest.mark.slow
def test_on_a_schedule_it_is_told_once_in_the_notebook(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    seconds = 1 / 3600
    manual = ("--Supervisor.durability=manual", _NO_IMAGES)
    first = start_notebook(*manual, f"--Supervisor.verify_every={seconds}", **document)
    first.run("x = list(range(5)); text = 'abc'")
    first.run("%checkpoint one")
    assert durable(first, 2)["state"] == "ready"
    end = time.monotonic() + 240
    while verified_at(first, 2) is None:
        assert time.monotonic() < end
        time.sleep(0.2)
    first.shut_down()  # killed, it may lose what it wrote last
    damage(blobs(tmp_path / "store"))
    second = start_notebook(*manual, f"--Supervisor.verify_every={1000}", **document)
    assert verified_at(second, 2), "the date of the last time"
    second.run("%timetravel config verify_every=0.0001")
    told = ""
    while "would not come back whole from the disk" not in told:
        assert time.monotonic() < end
        told += second.run("pass", silent=True).text("stderr") + second.run("1").text("stderr")
        time.sleep(1)
    assert "#2" in told and "cannot be read" in told, told
    assert verified_at(second, 2) is None
