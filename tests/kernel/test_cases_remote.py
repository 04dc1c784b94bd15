"""Cases `remote` that need no remote: what time does to a session that waits on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.exhaustive import more
from tests.kernel.durable_world import durable, image, kill

TIMES = """
import threading, time
t0 = time.monotonic(); w0 = time.time(); fired = []; deadline = time.monotonic() + 600
timer = threading.Timer(20, fired.append, ['t']); timer.start(); far = threading.Timer(600, print)
"""
SEEN = """
passed, by_wall = time.monotonic() - t0, time.time() - w0
time.sleep(0.1); threading.Event().wait(0.1)
print(passed > 0, abs(passed - by_wall) < 2, deadline - time.monotonic() > 0)
"""


def stored_and_killed(notebook: Any, images: bool) -> int:
    """The number of a checkpoint that is on the disk, with its kernel gone."""
    notebook.run("%checkpoint")
    number = int(notebook.head()["number"])
    written = image(notebook, number) if images else durable(notebook, number)
    assert written["state"] == "ready"
    kill(notebook)
    return number


@pytest.mark.parametrize("images", [True, False])
def test_05_a_pause_between_checkpoint_and_restore(
    start_notebook: Callable[..., Any], document: dict[str, Any], images: bool
) -> None:
    """The clock goes on as if the session had waited; a timer fires once, or is told as lost."""
    arguments = ("--Supervisor.durability=manual", f"--Supervisor.images={images}")
    notebook = start_notebook(*arguments, **document)
    notebook.run(TIMES)
    number = stored_and_killed(notebook, images)
    notebook = start_notebook(*arguments, **document)
    report = notebook.run(f"%restore {number}").out
    assert notebook.run(SEEN).out == "True True True"
    if images:
        assert notebook.run("timer.join(50); time.sleep(0.2); print(fired)").out == "['t']"
    else:
        assert "not brought back: timer: a thread cannot be kept" in report
        assert notebook.run("print(fired, 'timer' in globals())").out == "[] False"
    assert notebook.run("1 + 1").result == "2"


@pytest.mark.parametrize("images", [True, *more(False)])
def test_05_after_a_reboot_the_clock_goes_on(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    later: tuple[str, ...],
    images: bool,
) -> None:
    """On a machine that has not been up for as long as a variable says, in both tiers."""
    arguments = ("--Supervisor.durability=manual", f"--Supervisor.images={images}")
    notebook = start_notebook(*arguments, prefix=later, **document)
    notebook.run(TIMES)
    for _ in range(2):  # the second one is of a process whose clock was put ahead
        notebook.run("again = time.monotonic()")
        number = stored_and_killed(notebook, images)
        notebook = start_notebook(*arguments, **document)
        report = notebook.run(f"%restore {number}").out
        assert ("a fresh one has the variables" in report) is not images and "behind" not in report
        assert notebook.run("print(time.monotonic() > again > t0)").out == "True"
        assert notebook.run(SEEN).out.startswith("True")
    assert notebook.run("print(time.monotonic() - t0 < 90_000, by_wall > 0)").out == "True True"


def test_05_without_a_time_namespace_it_is_told(
    start_notebook: Callable[..., Any], document: dict[str, Any], later: tuple[str, ...]
) -> None:
    arguments = ("--Supervisor.durability=manual", "--Supervisor.images=False")
    notebook = start_notebook(*arguments, prefix=later, **document)
    notebook.run("x = 1")
    number = stored_and_killed(notebook, images=False)
    notebook = start_notebook(*arguments, "--Supervisor.sandbox=none", **document)
    report = notebook.run(f"%restore {number}").out
    assert "s behind that of the checkpoint" in report, report
    assert notebook.run("x").result == "1"
