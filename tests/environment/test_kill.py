"""Killed at every place there is: the next start is clean, and no checkpoint has lost anything."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import time
from typing import Any

import psutil
import pytest
from session_world import put

from tests.exhaustive import more, times
from tests.session_processes import executor_of, init_of

CAPTURE_PLACES = [
    "init: stopped",
    "init: copied",
    "init: replaced",
    "init: handed over",
    "init: switched",
    "init: tidied",
    "captured",
    "state half written",
    "state written",
    "synced",
]
ROOT_CAPTURE_PLACES = ["init: root half captured"]
RESTORE_PLACES = [
    "init: restored one",
    "init: restored all",
    "restored",
]
ROOT_RESTORE_PLACES = ["init: root staged", "init: root removed"]
WHO = ["user", pytest.param("root", marks=pytest.mark.root)]
"""As whom CI runs a test: root's sandbox has a root directory of its own, and other options."""


def run_to_its_death(session: Any, code: str) -> None:
    """Send a cell that the kernel does not survive, or only just."""
    notebook = session.notebook
    with contextlib.suppress(queue.Empty):
        notebook.wait(notebook.send(code), timeout=0.5)
    session.wait_until_gone()


def check_all_checkpoints(session: Any, known: dict[int, str]) -> None:
    """Whatever is published has its files."""
    session.check_swept()
    for number in [number for number in session.kept() if number in known][-3:]:
        session.notebook.run(f"%restore {number} --only files")
        assert session.state() == known[number]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "who", ["user", pytest.param("root", marks=[pytest.mark.root, pytest.mark.exhaustive])]
)
def test_a_capture_killed_at_every_place(session, ability, who):
    is_root = who == "root"
    ability("root", os.geteuid() == 0 or not is_root)
    known = {}
    # somebody else who writes, so that files are handed over
    background = (
        f"import subprocess; subprocess.Popen(['sh', '-c', 'while sleep 0.01; do echo x; done "
        f">> {session.E}/other'], cwd='/')"
    )
    places = CAPTURE_PLACES + (ROOT_CAPTURE_PLACES if is_root else [])
    for number, place in enumerate(places):
        known[session.put(f"a{number}")] = f"a{number}"
        session.notebook.run(background)
        known[session.put(f"b{number}")] = f"b{number}"
        # answered when it is stored: no earlier capture is on its way to the disk past this place
        session.notebook.command("checkpoint", comment="to have all on the disk")
        session.armed.write_text(place)
        run_to_its_death(session, put(f"c{number}"))
        assert not session.armed.exists(), f"{place!r} was not passed"
        session.start()
        assert session.state() == f"c{number}", place
        check_all_checkpoints(session, known)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", WHO)
def test_a_restore_killed_at_every_place(session, ability, who):
    is_root = who == "root"
    ability("root", os.geteuid() == 0 or not is_root)
    known = {}
    places = RESTORE_PLACES + (ROOT_RESTORE_PLACES if is_root else [])
    for number, place in enumerate(places):
        first = session.put(f"a{number}")
        known[first] = f"a{number}"
        known[session.put(f"b{number}")] = f"b{number}"
        session.armed.write_text(place)
        run_to_its_death(session, f"%restore {first}")
        assert not session.armed.exists(), f"{place!r} was not passed"
        session.start()
        # the state file is written when all is mounted
        assert session.state() == f"b{number}", place
        check_all_checkpoints(session, known)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    ["stopped", "environment restored", *more("before safety", "files restored")],
)
def test_a_restore_killed_in_the_supervisor(session, place):
    """Environment and workspace are of one state: the one before until the files are replaced."""
    session.notebook.manager.shutdown_kernel()
    session.start(TIMETRAVEL_FAULT=f"{place}:kill")
    first = session.put("a")
    second = session.put("b")
    run_to_its_death(session, f"%restore {first}")
    session.start()
    assert whole_state(session) == ("a" if place == "files restored" else "b")
    check_all_checkpoints(session, {first: "a", second: "b"})


@pytest.mark.exhaustive
@pytest.mark.parametrize("who", ["supervisor", "init"])
def test_killed_at_any_time(session, who):
    rng = random.Random(who)
    known = {}
    for turn in range(3):
        known[session.put(f"a{turn}")] = f"a{turn}"
        pid = session.notebook.pid
        victim = pid if who == "supervisor" else init_of(pid).pid
        for number in range(5):
            session.notebook.send(put(f"b{turn}{number}"))
        time.sleep(rng.random() * 0.15)
        os.kill(victim, signal.SIGKILL)
        session.wait_until_gone()
        session.start()
        check_all_checkpoints(session, known)


def test_the_executor_killed_at_any_time(session):
    rng = random.Random(1)
    for turn in range(5):
        number = session.put(f"a{turn}")
        executor = executor_of(session.notebook.pid)
        msg_id = session.notebook.send(put(f"b{turn}") + "\nimport time; time.sleep(0.05)")
        time.sleep(rng.random() * 0.1)
        executor.kill()
        session.notebook.wait(msg_id)
        session.notebook.run("", ok=False)  # it may die after its reply
        # the cell is done, or all of it is taken back
        state = session.state()
        assert state in (f"a{turn}", f"b{turn}")
        session.notebook.run(f"%restore {number}")
        assert session.state() == f"a{turn}"
    session.notebook.manager.shutdown_kernel()
    session.wait_until_gone()


def whole_state(session: Any) -> str:
    """What environment and workspace say, once they say the same."""
    state = session.state()
    assert session.notebook.run("print(Path('w').read_text())").out == state
    return str(state)


def time_of_a_restore(session: Any) -> float:
    """Seconds that one takes here and now: the kills are spread over so long and a bit more."""
    first = session.put("first")
    session.put("second")
    began = time.monotonic()
    session.notebook.run(f"%restore {first}")
    return time.monotonic() - began


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("who", ["supervisor", "init"])
def test_a_restore_killed_at_any_time(session, who):
    rng = random.Random(f"restore {who}")
    takes = time_of_a_restore(session)
    known = {}
    for turn in range(3):
        first = session.put(f"a{turn}")
        known[first] = f"a{turn}"
        second = session.put(f"b{turn}")
        known[second] = f"b{turn}"
        session.wait_until_stored(second)
        pid = session.notebook.pid
        victim = pid if who == "supervisor" else init_of(pid).pid
        session.notebook.send(f"%restore {first}")
        time.sleep(rng.random() * 1.2 * takes)
        os.kill(victim, signal.SIGKILL)
        session.wait_until_gone()
        session.start()
        assert whole_state(session) in (f"a{turn}", f"b{turn}"), turn
        assert {first, second} <= set(session.kept())
        check_all_checkpoints(session, known)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_executor_killed_at_any_time_of_a_restore(session):
    rng = random.Random("restore executor")
    takes = time_of_a_restore(session)
    for turn in range(times(10, 4)):
        session.notebook.run(f"x = 'a'\n{put(f'a{turn}')}")
        first = session.notebook.head()["number"]
        session.notebook.run(f"x = 'b'\n{put(f'b{turn}')}")
        second = session.notebook.head()["number"]
        msg_id = session.notebook.send(f"%restore {first}")
        time.sleep(rng.random() * 1.2 * takes)
        while True:  # there is none for a moment
            with contextlib.suppress(AssertionError, psutil.NoSuchProcess):
                executor_of(session.notebook.pid).kill()
                break
        session.notebook.wait(msg_id)
        session.notebook.run("", ok=False)  # it may die after its reply
        state = whole_state(session)
        assert state in (f"a{turn}", f"b{turn}"), turn
        assert session.notebook.run("print(x)").out == state[0]
        for number, what in ((second, "b"), (first, "a")):
            session.notebook.run(f"%restore {number}")
            assert whole_state(session) == f"{what}{turn}"
            assert session.notebook.run("print(x)").out == what
    session.notebook.manager.shutdown_kernel()
    session.wait_until_gone()
