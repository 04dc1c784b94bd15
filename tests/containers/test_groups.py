"""Cases group-01, -02 and -04 where the members' kernels run in containers of one image."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_timetravel import cli
from jupyter_timetravel.containers.places import store_of
from kernel_runtime.store import locks
from tests.conftest import PORTS, Notebook
from tests.containers.conftest import START, ours, revive
from tests.groups.conftest import Command, Done, ran
from tests.groups.test_one_goes_back import pair, test_the_case
from tests.waiting import until

__all__ = ["pair", "test_the_case"]  # group-01: a fixture and the test, as for other kernels


@pytest.fixture
def folder(place: Path) -> Path:
    """Where all members work."""
    return place / "work"


@pytest.fixture
def on(start: START, folder: Path) -> Callable[..., Notebook]:
    """Start a kernel for a notebook of the shared folder, in a container of its own."""

    def begin(name: str, **settings: Any) -> Notebook:
        book = folder / f"{name}.ipynb"
        if not book.exists():
            nbformat.write(nbformat.v4.new_notebook(), book)
        return start(env={"JPY_SESSION_NAME": str(book)}, **settings)

    return begin


@pytest.fixture
def tt(capsys: pytest.CaptureFixture[str], image: str) -> Callable[..., Any]:
    """Run ``jupyter timetravel … --docker IMAGE``: the result, or with a status what it says."""

    def run(*words: Any, status: int = 0) -> Any:
        capsys.readouterr()
        found = cli.main([*map(str, words), "--docker", image, "--json"])
        out, err = capsys.readouterr()
        assert found == status, (found, out, err)
        return err if status else Done(found, out, err).result

    return run


@pytest.fixture
def beside(image: str) -> Iterator[Callable[..., Command]]:
    """The same in a process of its own, beside the test."""
    started: list[Command] = []

    def run(*words: Any, fault: str = "") -> Command:
        started.append(Command((*words, "--docker", image), fault))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.fixture
def two(on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path) -> list[Notebook]:
    """Members that G1 holds at 1, in memory, home and workspace, and that are at 2."""
    members = [on("A"), on("B")]
    tt("group", "create", "g", folder / "A.ipynb", folder / "B.ipynb")
    for number in (1, 2):
        for one, name in zip(members, "AB"):
            ran(
                one,
                f"import os; n = {number}; open('{name}.txt', 'w').write(str(n))\n"
                f"open(os.path.expanduser('~/mine'), 'w').write('{name}' + str(n))",
            )
        if number == 1:
            assert tt("checkpoint", "--group", "g", "-m", "both")["record"]["complete"]
    return members


def states(two: list[Notebook]) -> list[str]:
    """What memory, home and workspace say; whoever is held answers once the lease is over."""
    look = "print(n, open('{}.txt').read(), open(os.path.expanduser('~/mine')).read())"
    return [one.run(look.format(name)).out for one, name in zip(two, "AB")]


ONES, TWOS = ["1 1 A1", "1 1 B1"], ["2 2 A2", "2 2 B2"]


@pytest.mark.slow
def test_both_go_back_or_none(
    two: list[Notebook],
    tt: Callable[..., Any],
    beside: Callable[..., Command],
    docker: Any,
    place: Path,
) -> None:
    assert states(two) == TWOS
    # none: the coordinator is killed between the two
    assert beside("restore", "--group", "g", "G1", fault="group one restored:kill").was_killed()
    assert tt("group", "show", "g")["unfinished"]
    tt("restore", "--group", "g", "--undo")
    assert states(two) == TWOS
    # none: one member's container is gone
    [lost] = [c for c in ours(docker, place) if c.labels["jupyter-timetravel.notebook"][-7] == "B"]
    lost.remove(force=True)
    until(lambda: not two[1].manager.is_alive(), "the container's end is noticed")
    said = tt("restore", "--group", "g", "both", status=1)
    assert "B: dead: " in said and "Nothing was changed" in said
    assert two[0].run("print(n, open('A.txt').read())").out == "2 2"
    # both: its next container is the same member
    revive(two[1])
    told = tt("restore", "--group", "g", "both")
    assert states(two) == ONES, told["text"]
    tt("restore", "--group", "g", "--undo")
    assert two[0].run("print(n)").out == "2"
    # none: one member's checkpoint is deleted
    held = tt("list", "--group", "g")["records"][0]["members"]
    two[1].command("delete", checkpoint=held["B"]["checkpoint"])
    said = tt("restore", "--group", "g", "G1", status=1)
    assert "B: refused: " in said
    assert two[0].run("print(n, open('A.txt').read())").out == "2 2"


@pytest.mark.slow
def test_a_member_that_cannot(
    two: list[Notebook],
    tt: Callable[..., Any],
    beside: Callable[..., Command],
    docker: Any,
    image: str,
    place: Path,
) -> None:
    """group-02: busy, stopped, gone in the middle. Nobody stays held, and nothing is recorded."""

    def failed(reason: str) -> None:
        done = beside("checkpoint", "--group", "g", "--timeout", 6).wait()
        assert (done.status, f"A: {reason}: " in done.err) == (1, True), done
        assert two[1].run("print(n)").out == "2"
        assert len(tt("list", "--group", "g")["records"]) == 1

    running = two[0].send("import threading; threading.Event().wait(3600)")
    failed("busy")
    two[0].interrupt()
    assert "KeyboardInterrupt" in two[0].wait(running).error
    [one] = [c for c in ours(docker, place) if c.labels["jupyter-timetravel.notebook"][-7] == "A"]
    supervisor = one.attrs["State"]["Pid"]  # of the same user, and 1 inside
    os.kill(supervisor, signal.SIGSTOP)
    try:
        failed("not answering")
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert two[0].run("print(n)").out == "2"
    # killed while the request waits for it
    [lock] = Path(store_of(image), "locks").glob("group-*.lock")
    two[0].send("threading.Event().wait(3600)")
    asked = beside("checkpoint", "--group", "g", "--timeout", 50)
    until(lambda: f"process {asked.process.pid} " in locks.holder(lock), "it has the group")
    one.remove(force=True)
    done = asked.wait()
    assert (done.status, "A: dead: " in done.err) == (1, True), done
    assert two[1].run("print(n)").out == "2"
    revive(two[0])
    assert tt("checkpoint", "--group", "g")["record"]["title"] == "G2"


@pytest.mark.slow
def test_a_member_that_is_waited_for(
    on: Callable[..., Notebook],
    tt: Callable[..., Any],
    beside: Callable[..., Command],
    folder: Path,
    place: Path,
) -> None:
    """group-04, over the network of the host, which both containers have."""
    s, c = on("S", network="host"), on("C", network="host")
    port = next(PORTS)
    ran(s, f"import socket\nsrv = socket.create_server(('127.0.0.1', {port})); box = {{'v': 0}}")
    ran(c, "import socket")
    tt("group", "create", "g", folder / "S.ipynb", folder / "C.ipynb")
    asks = (
        f"c = socket.create_connection(('127.0.0.1', {port})); c.sendall(b'ask')\n"
        "ans = c.recv(10); print(ans)"
    )
    serves = (
        "conn, _ = srv.accept(); q = conn.recv(10); box['v'] += 1; conn.sendall(b'ok%d' % box['v'])"
    )
    asked = c.send(asks)
    until(lambda: c.command("status")["busy"], "the client waits for its answer")
    done = beside("checkpoint", "--group", "g", "--timeout", 5).wait()
    assert (done.status, "C: busy: " in done.err) == (1, True), done
    request = beside("checkpoint", "--group", "g", "--json")
    s.run(serves)
    assert c.wait(asked).out == "b'ok1'"
    assert request.wait().status == 0
    ran(s, "box['v'] = 99")
    ran(c, "ans = None")
    tt("restore", "--group", "g", "-1")
    assert (s.run("print(box['v'])").out, c.run("print(ans)").out) == ("1", "b'ok1'")


def test_who_keeps_its_checkpoints_elsewhere_is_no_member(
    on: Callable[..., Notebook], capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    ran(on("A"), "n = 1")
    words = ["group", "create", "g", str(folder / "A.ipynb")]
    store = tmp_path / "other"
    assert cli.main([*words, "--store", str(store)]) == 1
    assert "There is no store in" in capsys.readouterr().err
    assert cli.main(["checkpoint", "--docker", "some-image"]) == 1
    assert "go with --group" in capsys.readouterr().err
