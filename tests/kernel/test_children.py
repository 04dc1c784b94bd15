"""``children = "capture"``: CRIU dumps the live session with its child processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.durable_world import damage, image, kill
from tests.states.suite import WAYS

CAPTURE = ("--Supervisor.durability=manual", "--Supervisor.children=capture")

CHILDREN = """
import multiprocessing, os, socket, subprocess, threading, time
def square(x): return x * x, os.getpid()
pool = multiprocessing.get_context('fork').Pool(2)
workers = {p.pid for p in pool._pool}
cat = subprocess.Popen(['cat'], stdin=-1, stdout=-1)
cat.stdin.write(b'under way\\n'); cat.stdin.flush()
sleep = subprocess.Popen(['sleep', '100000'], start_new_session=True)
number = 'import sys\\nfor n, l in enumerate(sys.stdin, 1): print(n, l.strip(), flush=True)'
counter = subprocess.Popen(['python3', '-u', '-c', number], stdin=-1, stdout=-1, text=True)
ours, theirs = socket.socketpair()
echo = subprocess.Popen(['cat'], stdin=theirs, stdout=theirs); theirs.close()
half = (n for n in range(100)); next(half)
ticks = [0]
def tick():
    while True: time.sleep(0.01); ticks[0] += 1
thread = threading.Thread(target=tick, daemon=True); thread.start()
me, pids = os.getpid(), [p.pid for p in (cat, sleep, counter, echo)]
log = open('log', 'w'); log.write('written'); log.flush(); log.write(', buffered')
"""
STEP = """
found = pool.map(square, range(4), chunksize=1)
counter.stdin.write('word\\n'); counter.stdin.flush()
ours.send(b'around'); before = ticks[0]
while ticks[0] == before: time.sleep(0.01)
log.write('.'); log.flush()
print([x for x, _ in found], {p for _, p in found} <= workers, next(half),
      counter.stdout.readline().strip(), ours.recv(10), os.getpid() == me,
      [p.pid for p in (cat, sleep, counter, echo)] == pids,
      [p.poll() for p in (cat, sleep, counter, echo)], open('log').read())
"""
LATER = (
    "[0, 1, 4, 9] True {n} {n} word b'around' True True [None, None, None, None] written, buffered"
)


def after(n: int) -> str:
    """What STEP prints when it runs for the n-th time."""
    return LATER.format(n=n) + "." * n


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """CRIU cannot follow files of a Python below the same top-level directory as the store."""
    if os.geteuid() != 0:
        yield tmp_path_factory.mktemp("children")
        return
    with tempfile.TemporaryDirectory(prefix="timetravel-tests-", dir="/srv") as directory:
        yield Path(directory)


@pytest.fixture
def criu(ability: Callable[[str, bool], None]) -> None:
    why = WAYS["criu"].missing()
    ability(why, not why)


@pytest.mark.root
def test_children_come_back_in_the_same_kernel_and_after_the_end_of_everything(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    notebook = start_notebook(*CAPTURE, **document)
    notebook.run(CHILDREN)
    said = notebook.run("%checkpoint --label all").out
    assert "children; for them it paused" in said, said
    number = notebook.head()["number"]
    held = image(notebook, number, "criu")
    assert held["state"] == "ready" and held["children"] >= 6 and held["pause_ms"] > 0, held
    assert image(notebook, number)["state"] == "ready"
    shown = notebook.run(f"%timeline {number}").out
    assert f"with {held['children']} children, paused {held['pause_ms']:.0f} ms" in shown
    assert "not held: child " not in shown, shown
    assert notebook.run(STEP).out == after(1)
    assert notebook.run(STEP).out == after(2)
    for _ in range(2):
        text = notebook.run("%restore all").out
        assert text.startswith("restored #") and "not brought back" not in text, text
        assert notebook.run(STEP).out == after(1)
    text = notebook.run("%restore --undo").out
    assert "not brought back" not in text, text
    assert notebook.run(STEP).out == after(2)
    kill(notebook)

    for _ in range(2):
        notebook = start_notebook(*CAPTURE, **document)
        text = notebook.run("%restore all").out
        assert text.startswith("restored #") and "not brought back" not in text, text
        assert notebook.run(STEP).out == after(1)
        assert notebook.run("cat.stdin.close(); cat.stdout.read()").result == "b'under way\\n'"
        # what came back is captured again
        notebook.run("%checkpoint --label again")
        assert image(notebook, notebook.head()["number"], "criu")["state"] == "ready"
        assert notebook.run("next(half), cat.wait(), sleep.poll()").result == "(2, 0, None)"
        notebook.run("%restore again")
        assert notebook.run("next(half), cat.poll(), sleep.poll()").result == "(2, 0, None)"
        kill(notebook)


@pytest.mark.root
def test_what_is_damaged_is_named_and_the_next_best_capture_taken(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path, criu: None
) -> None:
    """The frozen process, our image, the variables; the present state where none is left."""
    store = tmp_path / "store"
    notebook = start_notebook(*CAPTURE, **document)
    notebook.run(CHILDREN + "kept = [1]")
    notebook.run("%checkpoint --label all")
    number = notebook.head()["number"]
    for engine in ("criu", "image"):
        assert image(notebook, number, engine)["state"] == "ready"
    shutil.copytree(store / "criu", tmp_path / "whole")
    damage(store.glob("criu/*/files/pages-*.img"))
    text = notebook.run("%restore all").out
    assert "child processes were not brought back" in text and "pages-" in text, text
    assert notebook.run("next(half), cat.poll(), me == os.getpid()").result == "(1, -9, True)"
    kill(notebook)

    notebook = start_notebook(*CAPTURE, **document)
    text = notebook.run("%restore all").out
    assert "child processes were not brought back" in text and "fresh" not in text, text
    assert notebook.run("next(half), kept").result == "(1, [1])"
    kill(notebook)

    damage(store.glob("images/*/pages.ttpages"))
    notebook = start_notebook(*CAPTURE, **document)
    text = notebook.run("%restore all").out
    assert "child processes were not brought back" in text and "fresh" in text, text
    assert notebook.run("kept").result == "[1]"
    # what cannot be woken for another reason than damage: a file that is open is another one now
    shutil.rmtree(store / "criu")
    shutil.copytree(tmp_path / "whole", store / "criu")
    notebook.run("present = subprocess.Popen(['cat'], stdin=-1, stdout=-1)")
    damage(path for path in (store / "namespaces").rglob("*") if path.is_file())
    notebook.run("from pathlib import Path; Path('log').write_text('another length')")
    cell = notebook.run("%restore all --only process", ok=False)
    said = cell.error + cell.text("stdout") + cell.text("stderr")
    assert "You are back where you were" in said, said
    assert "With its child processes" in said and "log has bad size" in said, said
    shown = notebook.run("present.communicate(b'it lives')[0]").result
    assert shown == "b'it lives'"


@pytest.mark.root
def test_a_child_that_cannot_be_dumped(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    """A socket pair with a process that is not below the session: all runs on, and is said."""
    notebook = start_notebook(*CAPTURE, **document)
    notebook.run(CHILDREN)
    notebook.run(
        "near, far = socket.socketpair()\n"
        "daemon = f'import os, time; os.fork() and os._exit(0); time.sleep(100000)'\n"
        "subprocess.run(['python3', '-c', daemon], pass_fds=[far.fileno()]); far.close()"
    )
    said = notebook.run("%checkpoint --label without").out
    number = notebook.head()["number"]
    failed = image(notebook, number, "criu")
    assert failed["state"] == "failed" and "unix" in failed["error"], failed
    assert "The child processes could not be captured" in said, said
    assert image(notebook, number)["state"] == "ready"
    assert notebook.run(STEP).out == after(1)
    text = notebook.run("%restore without").out
    assert "not brought back" in text, text
    assert notebook.run("next(half)").result == "1"


ORPHAN = """
shell = "sleep 100000 >/dev/null & echo $!"
orphan = int(subprocess.run(['sh', '-c', shell], stdout=subprocess.PIPE).stdout)
while open(f'/proc/{orphan}/comm').read() != 'sleep\\n': time.sleep(0.01)
"""


@pytest.mark.root
def test_a_process_whose_parent_has_ended_is_listed(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    notebook = start_notebook(*CAPTURE, **document)
    notebook.run(CHILDREN + ORPHAN)
    notebook.run("%checkpoint --label all")
    held = image(notebook, notebook.head()["number"], "criu")
    assert held["state"] == "ready", held
    [note] = held["not_captured"]
    assert note["kind"] == "child process" and note["subject"].endswith("(sleep)"), note
    text = notebook.run("%restore all").out
    assert text.count("not brought back") == 1 and note["subject"] in text, text
    assert notebook.run(STEP).out == after(1)


@pytest.mark.root
def test_automatic_ones_the_environment_and_a_death(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    """Each checkpoint that is written has the children; so has what a death goes back to."""
    notebook = start_notebook("--Supervisor.children=capture", **document)
    notebook.run(CHILDREN)
    first = notebook.head()["number"]
    assert image(notebook, first, "criu")["state"] == "ready"
    notebook.run(STEP + "open('/opt/children', 'w').write('first')")
    second = notebook.head()["number"]
    notebook.run(STEP + "open('/opt/children', 'w').write('second')")
    assert image(notebook, notebook.head()["number"], "criu")["state"] == "ready"
    text = notebook.run(f"%restore {second}").out
    assert "not brought back" not in text, text
    assert notebook.run("open('/opt/children').read(), next(half)").result == "('first', 2)"
    notebook.run("os.kill(os.getpid(), 9)", ok=False)
    assert notebook.run(STEP).out.startswith("[0, 1, 4, 9] True 3 2 word b'around' True True")
    kill(notebook)
    notebook = start_notebook("--Supervisor.children=capture", **document)
    text = notebook.run(f"%restore {first}").out
    assert "not brought back" not in text, text
    assert notebook.run("os.path.exists('/opt/children'), next(half)").result == "(False, 1)"


@pytest.mark.root
def test_a_tcp_connection(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    """It comes back closed; where this CRIU dumps no such socket at all, that is said instead."""
    notebook = start_notebook(*CAPTURE, **document)
    notebook.run(CHILDREN)
    notebook.run(
        "listener = socket.create_server(('127.0.0.1', 0)); port = listener.getsockname()[1]\n"
        "there = socket.create_connection(('127.0.0.1', port)); here, _ = listener.accept()"
    )
    said = notebook.run("%checkpoint --label all").out
    number = notebook.head()["number"]
    assert notebook.run("there.send(b'on'); here.recv(9)").result == "b'on'"
    held = image(notebook, number, "criu")
    text = notebook.run("%restore all").out
    assert "connection: fd" in text and " port " in text, text
    if held["state"] == "failed":
        assert "sockets" in held["error"] and "sockets" in said, held
        assert notebook.run("next(half), cat.poll()").result == "(1, -9)"
        return
    assert "child" not in text, text
    assert notebook.run(STEP).out == after(1)
    notebook.run(
        "there = socket.create_connection(('127.0.0.1', port)); here, _ = listener.accept()\n"
        "there.send(b'anew'); assert here.recv(9) == b'anew'"
    )


@pytest.mark.root
def test_refused_where_it_cannot_be(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    notebook = start_notebook("--Supervisor.criu=/nonexistent", **document)
    error = notebook.run("%timetravel config children=capture", ok=False)
    told = error.error + error.text("stderr")
    assert "children cannot be capture" in told and "there is no program" in told, told
    assert "children=ignore" in notebook.run("%timetravel config").out
    notebook.run("%timetravel config children=ignore")


def test_an_ordinary_user_is_told(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """At the start, and when it is set; the session is as without it."""
    if os.geteuid() == 0:
        pytest.skip("for an ordinary user")
    notebook = start_notebook("--Supervisor.children=capture", **document)
    cell = notebook.run("import subprocess; child = subprocess.Popen(['cat'], stdin=-1)")
    said = cell.text("stdout") + cell.text("stderr")
    assert "child processes are not captured: CRIU cannot be used: it needs root" in said, said
    error = notebook.run("%timetravel config children=capture", ok=False)
    assert "children cannot be capture" in error.error + error.text("stderr")
    assert notebook.run("child.poll() is None").result == "True"


@pytest.mark.root
def test_set_in_a_running_kernel(
    start_notebook: Callable[..., Any], document: dict[str, Any], criu: None
) -> None:
    """Files that were opened in older mounts are in its way: it is said what helps, and it does."""
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("open('/opt/library', 'wb').write(bytes(8192))")
    notebook.run(
        "import mmap\nwith open('/opt/library', 'rb') as file:\n"
        "    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)"
    )
    notebook.run("open('/opt/another', 'w').write('a new layer')")
    notebook.run("%timetravel config children=capture")
    notebook.run(CHILDREN)
    said = notebook.run("%checkpoint --label before").out
    assert "restart the kernel, %restore" in said, said
    assert notebook.run(STEP).out == after(1)
    assert image(notebook, notebook.head()["number"] - 1)["state"] == "ready"
    kill(notebook)

    notebook = start_notebook(*CAPTURE, **document)
    assert "not brought back" in notebook.run("%restore before").out
    notebook.run("again = subprocess.Popen(['cat'], stdin=-1, stdout=-1)")
    notebook.run("%checkpoint --label after")
    assert image(notebook, notebook.head()["number"], "criu")["state"] == "ready"
    notebook.run("again.kill()")
    text = notebook.run("%restore after").out
    assert "not brought back" not in text, text
    assert notebook.run("again.communicate(b'word')[0], mapped[0]").result == "(b'word', 0)"
