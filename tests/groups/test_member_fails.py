"""group-02: a member dies, is busy or hangs while the group is captured."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Notebook
from tests.exhaustive import more
from tests.groups.conftest import Done, ran
from tests.waiting import PATIENCE

LIMIT = 6


@pytest.fixture
def three(on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path) -> Any:
    """A, B and C, the slow one."""
    members = [on(name) for name in "ABC"]
    for one in members:
        ran(one, "n = 0")
    ran(members[2], "import numpy as np; arr = np.random.rand(2_000_000)")
    tt("group", "create", "g", *(folder / f"{name}.ipynb" for name in "ABC"))
    return members


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """These processes do nothing for the length of the block."""
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # one that was at work in the background, and is done
        os.kill(pid, number)


def failed(done: Done, member: str, *reasons: str) -> None:
    """The command has named the member and the reason."""
    assert done.status == 1, done
    assert f"{member}: " in done.err
    assert any(f"{member}: {reason}: " in done.err for reason in reasons), done.err
    assert "Nobody is held any more" in done.err


def go_on(*notebooks: Notebook) -> None:
    """Nobody is held."""
    for one in notebooks:
        assert one.run("print(n)").out == "0"


def records(tt: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tt("list", "--group", "g")["records"]
    return found


def take(beside: Callable[..., Any], *more: str, limit: float = LIMIT) -> Done:
    """A group checkpoint in a process of its own."""
    done: Done = beside("checkpoint", "--group", "g", "--timeout", limit, *more).wait()
    return done


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 1.0, *more(0.05, 3.0)])
def test_a_member_that_is_killed(
    three: Any,
    on: Callable[..., Notebook],
    tt: Callable[..., Any],
    beside: Callable[..., Any],
    delay: float,
) -> None:
    a, b, c = three
    asked = beside("checkpoint", "--group", "g", "--timeout", 20)
    time.sleep(delay)  # wherever the request is by then
    os.kill(b.pid, signal.SIGKILL)
    done = asked.wait()
    if done.status == 0:  # all three were captured before
        (record,) = records(tt)
        assert record["complete"] and set(record["members"]) == {"A", "B", "C"}
    else:
        failed(done, "B", "dead")
        assert records(tt) == []
    go_on(a, c)
    assert on("B").run("print(40 + 2)").out == "42"
    assert take(beside, limit=PATIENCE).status == 0


def test_a_busy_member(three: Any, tt: Callable[..., Any], beside: Callable[..., Any]) -> None:
    a, b, c = three
    running = a.send("import threading; print('in'); threading.Event().wait(3600)")
    a.until_printed(running)
    failed(take(beside), "A", "busy")
    go_on(b, c)
    assert records(tt) == []
    # those that are at rest, where that is asked for
    done = take(beside, "--allow-partial", "--json")
    assert done.status == 0, done
    assert set(done.result["record"]["members"]) == {"B", "C"}
    assert done.result["record"]["missing"]["A"].startswith("busy")
    a.interrupt()
    a.wait(running)
    said = tt("restore", "--group", "g", "G1", status=1)
    assert "G1 is incomplete" in said
    ran(b, "n = 5")
    tt("restore", "--group", "g", "G1", "--allow-partial")
    go_on(a, b, c)


def test_one_that_becomes_idle_is_waited_for(
    three: Any, tt: Callable[..., Any], beside: Callable[..., Any]
) -> None:
    a = three[0]
    waiting = (
        "import os, time\nprint('in')\nwhile not os.path.exists('go'): time.sleep(0.02)\nn = 7"
    )
    running = a.send(waiting)
    a.until_printed(running)
    asked = beside("checkpoint", "--group", "g", "--json")
    three[1].run("1")
    (a.cwd / "go").touch()
    assert a.wait(running).status == "ok"
    assert asked.wait().status == 0
    ran(a, "n = 8")
    tt("restore", "--group", "g", "-1")
    assert a.run("print(n)").out == "7"


@pytest.mark.parametrize("who", ["supervisor", *more("everything inside")])
def test_a_member_that_is_stopped(
    three: Any, tt: Callable[..., Any], beside: Callable[..., Any], who: str
) -> None:
    a, b, c = three
    inside = [one.pid for one in psutil.Process(a.pid).children(recursive=True)]
    with stopped([a.pid] if who == "supervisor" else inside):
        failed(take(beside), "A", "not answering")
        go_on(b, c)
    go_on(a)
    assert records(tt) == []
    assert take(beside, limit=PATIENCE).status == 0
    assert len(records(tt)) == 1


def test_what_was_captured_of_others_says_that_it_is_not_of_a_record(
    three: Any, tt: Callable[..., Any], beside: Callable[..., Any]
) -> None:
    a, b = three[:2]
    inside = [one.pid for one in psutil.Process(a.pid).children(recursive=True)]
    with stopped(inside):
        done = take(beside, "-m", "noon")
    failed(done, "A", "not answering")
    assert "stays as ordinary checkpoints" in done.err
    assert b.head()["comment"] == "group g: noon (not completed)"
    go_on(*three)


def test_a_member_that_was_shut_down(three: Any, beside: Callable[..., Any]) -> None:
    a, b, c = three
    a.client.stop_channels()
    a.manager.shutdown_kernel()
    failed(take(beside), "A", "dead")
    go_on(b, c)
