"""Without namespaces everything comes back too, under new process and thread ids, and says so."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from tests.session_processes import frozen_of, init_of


@pytest.fixture
def notebook(start_notebook):
    return start_notebook("--Supervisor.sandbox=none")


def test_threads_come_back_under_new_ids(notebook):
    notebook.run(
        "import threading, time, os\nn = 0\npid = os.getpid()\n"
        "def work():\n    global n\n    while True: n += 1; time.sleep(.01)\n"
        "t = threading.Thread(target=work, daemon=True); t.start()\nx = [1]"
    )
    notebook.run("x.append(2)")
    report = notebook.run("%restore 1").out
    assert "new id" in report
    cell = notebook.run(
        "a, end = n, time.monotonic() + 50\n"
        "while n == a and time.monotonic() < end: time.sleep(.01)\n"
        "print(x, n > a, t.is_alive(), os.getpid() != pid,"
        " threading.get_native_id() == os.getpid())"
    )
    assert cell.out == "[1] True True True True"


def test_polars_asyncio_and_a_second_restore(notebook):
    notebook.run(
        "import polars as pl, asyncio\n"
        "df = pl.DataFrame({'k': [i % 7 for i in range(100_000)], 'v': range(100_000)})\n"
        "total = lambda: df.group_by('k').agg(pl.col('v').sum())['v'].sum()\nprint(total())"
    )
    for _ in range(2):
        notebook.run("%restore 1")
        assert notebook.run("await asyncio.sleep(.01); print(total())").out == "4999950000"


def test_a_death_and_what_is_left(notebook):
    notebook.run("x = 1")
    assert "SIGSEGV" in notebook.run("import ctypes; ctypes.string_at(0)", ok=False).error
    assert notebook.run("x").result == "1"


# a user namespace of our own, in which no further namespace may be made (namespaces(7))
REFUSED = (
    "unshare",
    "-Ur",
    "sh",
    "-c",
    'echo 0 > /proc/sys/user/max_pid_namespaces; exec "$0" "$@"',
)


LOOP = """
import asyncio, threading
gate, done = threading.Event(), threading.Event()
async def task():
    await asyncio.sleep(0.01); done.set()
def ready():
    asyncio.get_running_loop().create_task(task())
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
loop.call_soon_threadsafe(gate.wait); loop.call_soon_threadsafe(ready); x = 1
"""


def test_a_loop_in_a_thread_goes_on_with_what_was_ready(notebook):
    """Until Python 3.13 asyncio takes it for no running loop once the process has a new id."""
    notebook.cells(LOOP, "x = 2", "%restore 1")
    assert notebook.run("gate.set(); x, done.wait(60)").result == "(1, True)"


def test_namespaces_that_are_refused_are_said_to_be(start_notebook, ability):
    ability("user namespaces", subprocess.run(["unshare", "-Ur", "true"]).returncode == 0)
    notebook = start_notebook(prefix=REFUSED)
    status = notebook.command("status")
    assert status["engines"]["sandbox"] == "none"
    assert any("unshare" in text and "new ids" in text for text in status["limits"])
    notebook.cells("x = 1", "x = 2", "%restore 1")
    assert notebook.run("x").result == "1"


def test_strict_refuses_to_start_without_them(start_notebook, ability):
    ability("user namespaces", subprocess.run(["unshare", "-Ur", "true"]).returncode == 0)
    with pytest.raises(RuntimeError):
        start_notebook("--Supervisor.sandbox=namespaces", prefix=REFUSED)


def test_an_unknown_sandbox_or_engine_is_named(start_notebook, capfd):
    for option in ("--Supervisor.sandbox=moon", "--Supervisor.process_engine=moon"):
        with pytest.raises(RuntimeError):
            start_notebook(option)
        assert "There is no 'moon'" in capfd.readouterr().err


def test_nothing_is_left_when_its_init_is_killed(notebook):
    for number in range(3):
        notebook.run(f"x = {number}")
    notebook.head()
    family = psutil.Process(notebook.pid).children(recursive=True)
    frozen_of(notebook.pid, least=3)
    init_of(notebook.pid).kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
