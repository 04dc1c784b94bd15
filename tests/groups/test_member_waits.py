"""group-04: a member waits for another member; two requests for one group at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PORTS, Notebook
from tests.groups.conftest import ran
from tests.waiting import until


@pytest.fixture
def port() -> int:
    """One that is free."""
    return next(PORTS)


@pytest.fixture
def pair(on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path, port: int) -> Any:
    """S serves, C asks."""
    s, c = on("S"), on("C")
    ran(
        s,
        f'import socket, threading\nsrv = socket.create_server(("127.0.0.1", {port}))\n'
        'box = {"v": 0}',
    )
    ran(c, "import socket")
    tt("group", "create", "g", folder / "S.ipynb", folder / "C.ipynb")
    tt("group", "create", "h", folder / "C.ipynb", folder / "S.ipynb")
    return s, c


ASK = (
    'print("asks"); '
    'c = socket.create_connection(("127.0.0.1", {port})); c.sendall(b"ask"); ans = c.recv(10); '
    "print(ans)"
)
ANSWERED = "asks\nb'ok1'"
SERVE = 'conn, _ = srv.accept(); q = conn.recv(10); box["v"] += 1; conn.sendall(b"ok%d" % box["v"])'


def test_a_member_that_is_waited_for_is_served(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any], port: int
) -> None:
    s, c = pair
    asked = c.send(ASK.format(port=port))
    c.until_printed(asked)
    request = beside("checkpoint", "--group", "g", "--json")
    # the request waits: it has taken the group
    until(lambda: list(Path(s.cwd).parent.glob("store/locks/group-*.lock")))
    s.run(SERVE)
    assert c.wait(asked).out == ANSWERED
    done = request.wait()
    assert done.status == 0, done
    records = tt("list", "--group", "g")["records"]
    assert [(one["title"], one["complete"]) for one in records] == [("G1", True)], "one entry"
    s.run('box["v"] = 99')
    c.run("ans = None")
    tt("restore", "--group", "g", "-1")
    assert s.run('print(box["v"])').out == "1"
    assert c.run("print(ans)").out == "b'ok1'"


def test_one_that_nobody_serves_is_named_and_waits_on(
    pair: Any, beside: Callable[..., Any], port: int
) -> None:
    s, c = pair
    asked = c.send(ASK.format(port=port))
    c.until_printed(asked)
    done = beside("checkpoint", "--group", "g", "--timeout", 5).wait()
    assert done.status == 1
    assert "C: busy: " in done.err
    s.run(SERVE)
    assert c.wait(asked).out == ANSWERED


def test_two_requests_at_once_both_end(
    pair: Any, tt: Callable[..., Any], beside: Callable[..., Any]
) -> None:
    """Of one group, and of two groups with the same members in another order."""
    asked = [beside("checkpoint", "--group", name) for name in ("g", "h", "g", "h")]
    assert [one.wait().status for one in asked] == [0, 0, 0, 0]
    for name in ("g", "h"):
        titles = [one["title"] for one in tt("list", "--group", name)["records"]]
        assert titles == ["G1", "G2"]


def test_at_once_the_member_that_waits_is_left_out(
    pair: Any, tt: Callable[..., Any], port: int
) -> None:
    """Nothing is captured in the middle of a cell: who is at rest is, and the others are named."""
    s, c = pair
    asked = c.send(ASK.format(port=port))
    s.run("conn, _ = srv.accept()")  # so C is past its connect
    s.head()
    made = tt("checkpoint", "--group", "g", "--timeout", 1, "--allow-partial")["record"]
    assert not made["complete"]
    assert made["missing"].keys() == {"C"} and made["missing"]["C"].startswith("busy: ")
    s.run('box["v"] = 99')
    said = tt("restore", "--group", "g", "-1", status=1)
    assert "--allow-partial" in said
    assert s.run('print(box["v"])').out == "99"
    tt("restore", "--group", "g", "-1", "--allow-partial")
    assert s.run('print(box["v"])').out == "0"
    # S has gone back, and with its process went its end of the connection: C sees that
    assert c.wait(asked).error.startswith("ConnectionResetError")
    c.run("")
    assert tt("checkpoint", "--group", "g")["record"]["complete"], "now both are at rest"
