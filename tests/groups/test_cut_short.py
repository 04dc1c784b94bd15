"""A coordinator that is killed in the middle: nobody stays held, and the next command says so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Notebook
from tests.groups.conftest import ran
from tests.server.server_world import running
from tests.waiting import PATIENCE

KILLED = ":kill"


@pytest.fixture
def pair(on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path) -> Any:
    """Two members that G1 holds at 1, and that are at 2."""
    members = on("A"), on("B")
    tt("group", "create", "g", folder / "A.ipynb", folder / "B.ipynb")
    for one, name in zip(members, "AB"):
        ran(one, f"n = 1; open('{name}.txt', 'w').write('1')")
    tt("checkpoint", "--group", "g")
    for one, name in zip(members, "AB"):
        ran(one, f"n = 2; open('{name}.txt', 'w').write('2')")
    return members


def states(pair: Any) -> list[tuple[str, str]]:
    """What memory and files say; whoever is held answers once the lease is over."""
    return [
        (one.run("print(n)").out, (one.cwd / f"{name}.txt").read_text())
        for one, name in zip(pair, "AB")
    ]


def shown(tt: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = tt("group", "show", "g")
    return found


@pytest.mark.parametrize(
    ("step", "records"),
    [
        ("group held", 1),
        pytest.param("group one captured", 1, marks=pytest.mark.exhaustive),
        pytest.param("group captured", 1, marks=pytest.mark.exhaustive),
        ("group recorded", 2),
    ],
)
def test_a_checkpoint_that_is_cut_short(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any], step: str, records: int
) -> None:
    assert beside("checkpoint", "--group", "g", fault=step + KILLED).was_killed()
    assert states(pair) == [("2", "2"), ("2", "2")]
    assert [one["complete"] for one in shown(tt)["records"]] == [True] * records
    assert tt("checkpoint", "--group", "g")["record"]["number"] == records + 1


@pytest.mark.parametrize("step", ["group held", "group safety captured"])
def test_a_restore_that_had_not_begun(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any], step: str
) -> None:
    assert beside("restore", "--group", "g", "G1", fault=step + KILLED).was_killed()
    assert states(pair) == [("2", "2"), ("2", "2")]
    assert not shown(tt)["unfinished"]
    assert len(shown(tt)["records"]) == 1
    tt("restore", "--group", "g", "G1")
    assert states(pair) == [("1", "1"), ("1", "1")]


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("group safety recorded", marks=pytest.mark.exhaustive),
        "group one restored",
        pytest.param("group restored", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("way_out", ["finish", "take back"])
def test_a_restore_that_is_cut_short(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any], step: str, way_out: str
) -> None:
    assert beside("restore", "--group", "g", "G1", fault=step + KILLED).was_killed()
    states(pair)  # nobody is held
    assert shown(tt)["unfinished"]
    assert "was cut short" in shown(tt)["text"]
    # whatever else is asked is refused, and says what to do
    for words in (
        ("checkpoint", "--group", "g"),
        ("restore", "--group", "g", "G1", "--member", "A"),
        ("group", "remove", "g", "A"),
    ):
        said = tt(*words, status=1)
        assert "restore --group g G1` finishes it" in said
        assert "restore --group g --undo` takes it back" in said
    if way_out == "finish":
        tt("restore", "--group", "g", "G1")
        assert states(pair) == [("1", "1"), ("1", "1")]
        tt("restore", "--group", "g", "--undo")
    else:
        tt("restore", "--group", "g", "--undo")
    assert states(pair) == [("2", "2"), ("2", "2")]
    assert not shown(tt)["unfinished"]
    assert tt("checkpoint", "--group", "g")["record"]["complete"]


def test_a_restore_of_one_member_that_is_cut_short(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any]
) -> None:
    words = ("restore", "--group", "g", "G1", "--member", "B")
    assert beside(*words, fault="group member planned" + KILLED).was_killed()
    assert states(pair) == [("2", "2"), ("2", "2")]
    assert beside(*words, fault="group member restored" + KILLED).was_killed()
    assert states(pair) == [("2", "2"), ("1", "1")]
    at = {one["name"]: one["at"] for one in shown(tt)["members"]}
    assert at["B"] != "G1"  # the cell that looked at it has left a checkpoint
    assert tt("checkpoint", "--group", "g")["record"]["complete"]


def test_a_member_that_dies_in_the_middle_of_a_restore(
    on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path, beside: Callable[..., Any]
) -> None:
    """Those that were restored before it go back."""
    members = {name: on(name, TIMETRAVEL_FAULT="") for name in "A"}
    members["B"] = on("B", TIMETRAVEL_FAULT="stopped:kill")
    tt("group", "create", "g", folder / "A.ipynb", folder / "B.ipynb")
    for name, one in members.items():
        ran(one, f"n = 1; open('{name}.txt', 'w').write('1')")
    tt("checkpoint", "--group", "g")
    for name, one in members.items():
        ran(one, f"n = 2; open('{name}.txt', 'w').write('2')")
    done = beside("restore", "--group", "g", "G1").wait()
    assert done.status == 1
    assert "B: dead: " in done.err
    assert "A went back to before (G2)" in done.err
    assert members["A"].run("print(n)").out == "2"
    assert (folder / "A.txt").read_text() == "2"
    assert (folder / "B.txt").read_text() == "2"
    assert not shown(tt)["unfinished"]
    # its kernel is started again, and the group is whole
    end = time.monotonic() + PATIENCE
    while members["B"].manager.is_alive() and time.monotonic() < end:
        time.sleep(0.05)
    again = on("B", TIMETRAVEL_FAULT="")
    assert again.run("1").status == "ok"
    assert tt("checkpoint", "--group", "g")["record"]["complete"]


def test_the_leases_of_a_coordinator_that_is_stopped_end(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any]
) -> None:
    """It believes that it holds all, and is told otherwise."""
    asked = beside("checkpoint", "--group", "g", "--timeout", 20)
    time.sleep(1.0)  # wherever it is
    asked.process.send_signal(signal.SIGSTOP)
    assert states(pair) == [("2", "2"), ("2", "2")]
    asked.process.send_signal(signal.SIGCONT)
    done = asked.wait()
    assert done.status in (0, 1)
    assert len(shown(tt)["records"]) == 1 + (done.status == 0)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("group held", marks=pytest.mark.exhaustive),
        "group one captured",
        pytest.param("group captured", marks=pytest.mark.exhaustive),
    ],
)
def test_a_server_that_is_killed_while_it_captures_a_group(
    pair: Any,
    tt: Callable[..., Any],
    tmp_path: Path,
    step: str,
) -> None:
    """group-02: the coordinator is a Jupyter server, and ends with -9; the members live on."""
    root = tmp_path / "server"
    root.mkdir()
    same = ("JUPYTER_TIMETRAVEL_STORE", "JUPYTER_TIMETRAVEL_KEYS", "JUPYTER_RUNTIME_DIR")
    env = {name: os.environ[name] for name in same}
    with (
        running(root, **env, TIMETRAVEL_FAULT=step + KILLED) as server,
        server.as_user() as http,
    ):
        with pytest.raises(httpx.TransportError):
            http.post("/groups/g/checkpoints", json={"timeout": PATIENCE})
        assert server.process.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert states(pair) == [("2", "2"), ("2", "2")]
    assert [one["complete"] for one in shown(tt)["records"]] == [True]
    assert tt("checkpoint", "--group", "g")["record"]["number"] == 2
