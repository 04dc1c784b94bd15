"""Case docker-07: checkpoint, lose the container, restore, change, checkpoint: many rounds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook
from tests.containers.conftest import START, container, durable, of_a_notebook, revive
from tests.exhaustive import times
from tests.waiting import until

COUNT = """
import threading, time
log = []; open("f.txt", "w").write(""); n = 0
def count():
    global n
    while True:
        n += 1
        time.sleep(0.1)
threading.Thread(target=count, name="counter", daemon=True).start()
"""
LOOK = 'print(log, open("f.txt").read(), sorted(__import__("glob").glob("only*")))'


def step(notebook: Notebook, number: int) -> None:
    """The cell of a round, and its checkpoint."""
    notebook.run(
        f'log.append({number}); open("f.txt", "a").write("{number},")\n'
        f'open("only{number}.txt", "w").write("x"); seen = n'
    )
    notebook.run(f"%checkpoint --label r{number}")


def is_at(notebook: Notebook, *numbers: int) -> None:
    """Memory and files are those of these rounds."""
    appended = "".join(f"{number}," for number in numbers)
    names = sorted(f"only{number}.txt" for number in numbers)
    assert notebook.run(LOOK).out == f"{list(numbers)} {appended} {names}"


def counts(notebook: Notebook) -> bool:
    """Whether the thread goes on."""
    look = (
        "end = time.monotonic() + 50\n"
        "while n <= seen and time.monotonic() < end: time.sleep(0.05)\n"
        "print(n > seen)"
    )
    return notebook.run(look).out == "True"


def in_the_next_container(notebook: Notebook, label: str, docker: Any, place: Path) -> Any:
    """The container is removed, and the next one restores; its cell, and the seconds it took."""
    container(docker, place).remove(force=True)
    revive(notebook)
    began = time.perf_counter()
    cell = notebook.run(f"%restore {label}")
    return cell, time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_rounds(start: START, place: Path, docker: Any) -> None:
    notebook = start(env=of_a_notebook(place))
    notebook.run(COUNT)
    seconds = []
    for number in range(1, times(10, 4) + 1):
        step(notebook, number)
        until(lambda n=number: durable(notebook, f"r{n}"), f"r{number} is on the disk")
        cell, took = in_the_next_container(notebook, f"r{number}", docker, place)
        seconds.append(took)
        is_at(notebook, *range(1, number + 1))
        assert counts(notebook), cell.out
    # back to an early round, and on from there
    notebook.run("%restore r3")
    is_at(notebook, 1, 2, 3)
    step(notebook, 99)
    until(lambda: durable(notebook, "r99"), "r99 is on the disk")
    notebook.run('log.clear(); open("f.txt", "w").close(); __import__("os").remove("only99.txt")')
    notebook.run("%restore r99")
    is_at(notebook, 1, 2, 3, 99)
    assert counts(notebook)
    in_the_next_container(notebook, "r99", docker, place)
    is_at(notebook, 1, 2, 3, 99)
    assert counts(notebook)
    print("seconds of each restore:", *(f"{took:.2f}" for took in seconds))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rounds_of_pickles(start: START, place: Path, docker: Any) -> None:
    """Without images of the process the thread is not brought back, and that is said."""
    notebook = start(env=of_a_notebook(place), images=False)
    notebook.run(COUNT)

    def pickled(label: str) -> bool:
        captures = notebook.command("get", checkpoint=label)["checkpoint"]["captures"]
        assert not [c for c in captures if c["engine"] == "image"]
        return any((c["engine"], c["state"]) == ("dill", "ready") for c in captures)

    for number in range(1, 4):
        step(notebook, number)
        until(lambda n=number: pickled(f"r{n}"), f"r{number} is on the disk")
        cell, _ = in_the_next_container(notebook, f"r{number}", docker, place)
        assert "without threads" in cell.out
        is_at(notebook, *range(1, number + 1))
        assert (
            notebook.run("print([t.name for t in threading.enumerate()])").out.count("counter") == 0
        )
    notebook.run("%restore r2")
    is_at(notebook, 1, 2)
    step(notebook, 99)
    until(lambda: pickled("r99"), "r99 is on the disk")
    in_the_next_container(notebook, "r99", docker, place)
    is_at(notebook, 1, 2, 99)
