"""Which checkpoints are written to the disk, and when; who writes them gives way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psutil

from tests.conftest import UNTIL_GO
from tests.kernel.durable_world import durable, kill, namespace, timeline
from tests.waiting import until

_NO_IMAGES = "--Supervisor.images=False"


def state(notebook: Any, number: int) -> str | None:
    record = notebook.command("get", checkpoint=number)["checkpoint"]
    found = namespace(record)["state"]
    return None if found is None else str(found)


def test_every_skips_what_comes_within_the_interval(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(_NO_IMAGES, "--Supervisor.durability_interval=3600", **document)
    notebook.run("x = 1")
    assert durable(notebook, 1)["state"] == "ready", "the first one is due at once"
    notebook.cells("x = 2", "x = 3")
    notebook.run("%checkpoint --label by-hand")
    assert durable(notebook, 4)["state"] == "ready", "one that was asked for is never skipped"
    notebook.cells("x = 5", "x = 6", "x = 7")
    notebook.head()
    assert [state(notebook, number) for number in (2, 3, 5, 6, 7)] == [None] * 5
    notebook.command("pin", checkpoint=3)
    assert durable(notebook, 3)["state"] == "ready", "nor is one that was pinned later"
    notebook.run("%timetravel config durability_interval=0")
    notebook.run("x = 9")
    assert durable(notebook, notebook.head()["number"])["state"] == "ready"
    assert [state(notebook, number) for number in (2, 5, 6)] == [None] * 3, "nobody waits for those"
    lines = {line.split("#")[1].split()[0]: line for line in timeline(notebook).splitlines()}
    told = {number for number, line in lines.items() if "durable" in line}
    assert {"1", "3", "4"} <= told and not told & {"2", "5", "6"}, lines


def test_idle_writes_when_no_cell_runs(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    policy = ("--Supervisor.durability=idle", "--Supervisor.durability_interval=0")
    notebook = start_notebook(_NO_IMAGES, *policy, **document)
    # the second one waits behind the first: nothing is idle in between
    first, busy = notebook.send_queue(
        f"{UNTIL_GO}x = 1",
        "import os, time; print('busy', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(.05)",
    )
    notebook.wait(first)
    notebook.until_printed(busy, "busy")
    notebook.command("pin", checkpoint=0)
    assert durable(notebook, 0)["state"] == "ready", "what was asked for waits for nobody"
    assert state(notebook, 1) is None
    (document["cwd"] / "go").touch()
    notebook.wait(busy)
    assert durable(notebook, 2)["state"] == "ready"
    assert state(notebook, 1) is None, "the newest is written, not all"


def test_manual_writes_what_is_asked_for_only(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    policy = ("--Supervisor.durability=manual", "--Supervisor.durability_interval=0")
    notebook = start_notebook(_NO_IMAGES, *policy, **document)
    notebook.cells("x = 1", "x = 2")
    notebook.run("%checkpoint one")
    assert durable(notebook, 3)["state"] == "ready"
    notebook.command("label", checkpoint=2, label="two")
    assert durable(notebook, 2)["state"] == "ready"
    assert state(notebook, 1) is None
    notebook.run("%timetravel config durability=every")
    notebook.run("x = 3")
    assert durable(notebook, notebook.head()["number"])["state"] == "ready"


def test_who_writes_gives_way_to_the_session(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(_NO_IMAGES, "--Supervisor.durability=manual", **document)
    own = int(notebook.run("import os; os.nice(0)").result)
    notebook.run(
        "import time\n"
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        while not os.path.exists('go'): time.sleep(0.05)\n"
        "        return int, ()\n"
        "slow = Slow()"
    )
    notebook.run("%checkpoint large")
    supervisor = psutil.Process(notebook.pid)

    def seen() -> set[int]:
        found = set()
        for process in supervisor.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.add(process.nice())
        return found

    until(lambda: min(own + 10, 19) in seen())
    assert state(notebook, 3) == "pending"
    (document["cwd"] / "go").touch()
    assert durable(notebook, 3)["state"] == "ready"
    assert notebook.run("os.nice(0)").result == str(own)


def test_variables_of_an_earlier_kernel_with_what_they_share(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    first = start_notebook(_NO_IMAGES, "--Supervisor.durability=manual", **document)
    first.run(
        "class Account:\n    def __init__(self, n): self.n = n\n"
        "rows = [1]; same = rows; mine = Account(rows); other = 'old'\n"
        "def add(x): rows.append(x); return rows"
    )
    first.run("%checkpoint --label kept")
    assert durable(first, 2)["state"] == "ready"
    kill(first)
    second = start_notebook(_NO_IMAGES, "--Supervisor.durability=manual", **document)
    second.run("other = 'new'; here = 5")
    told = second.run("%restore kept --vars rows,same,mine,Account").out
    assert told.startswith("rows, same, mine, Account as they were at #2"), told
    check = "print(same is rows is mine.n, isinstance(mine, Account), other, here, 'add' in dir())"
    assert second.run(check).out == "True True new 5 False"
    second.run("%restore kept --vars add")
    # a function brought alone works on the variables that are there
    assert second.run("print(add(2) is rows, same)").out == "True [1, 2]"
    second.run("%restore --undo")
    assert second.run("'add' in dir()").result == "False"
