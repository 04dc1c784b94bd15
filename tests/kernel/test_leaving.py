"""The executor gets ready to leave while a restore is planned. It stays when that is refused or
takes long, and dies without harm to the session."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from pathlib import Path

from tests.kernel.test_damage import harmed
from tests.session_processes import executor_of
from tests.waiting import until


@contextlib.contextmanager
def locked(directory):
    """As while another session restores files there: who looks at them waits."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def blocks_all_signals(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    blocked = next(line.split()[1] for line in lines if line.startswith("SigBlk:"))
    return int(blocked, 16).bit_count() > 60


def is_ready(process):
    """In a freeze, for longer than a moment."""
    if not blocks_all_signals(process):
        return False
    time.sleep(0.1)
    return blocks_all_signals(process)


@contextlib.contextmanager
def restoring(notebook, checkpoint):
    """A restore that waits for somebody who works on the files; ends when it has ended."""
    ended = []

    def restore():
        asked = {"version": 1, "command": "restore", "args": {"checkpoint": checkpoint}}
        ended.append(notebook.control("timetravel_request", asked))

    thread = threading.Thread(target=restore)
    with locked(notebook.cwd):
        thread.start()
        yield ended
    thread.join(60)
    assert ended, "the restore has not ended"


SPIN = """
import hashlib, threading
ticks, data = 0, bytes(1 << 20)
def spin():
    global ticks
    while True:
        hashlib.sha256(data)  # without the interpreter's lock
        ticks += 1
threading.Thread(target=spin, daemon=True).start()
"""


def before_x(notebook):
    """The checkpoint before x is 1 beside a busy thread, and the process."""
    notebook.run(SPIN)
    number = notebook.head()["number"]
    notebook.run("x = 1")
    return number, executor_of(notebook.pid)


def test_a_refused_restore_costs_no_connection(start_notebook, document, tmp_path):
    notebook = start_notebook(**document)
    notebook.run("_ = open('c', 'w').write('c' * 100_000)")
    number = notebook.head()["number"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        notebook.run(
            "import socket; _ = open('c', 'w').write('new')\n"
            f"link = socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))"
        )
        ours, _ = server.accept()
        head = notebook.head()
        harmed(tmp_path / "store", "delete")
        before = executor_of(notebook.pid)
        assert "c: " in str(notebook.run(f"%restore {number}", ok=False).error)
        with ours:
            assert notebook.refused("restore", checkpoint=number)["ename"] == "RestoreRefused"
        assert executor_of(notebook.pid) == before
        assert notebook.head()["number"] >= head["number"]
    assert notebook.run("print(link.recv(1), link.close())").out == "b'' None"


def test_a_refusal_does_not_wait_for_a_process_that_somebody_has_stopped(
    start_notebook, document, tmp_path
):
    notebook = start_notebook(**document)
    notebook.run("_ = open('c', 'w').write('c' * 100_000)")
    number = notebook.head()["number"]
    notebook.run("_ = open('c', 'w').write('new')")
    notebook.head()
    harmed(tmp_path / "store", "delete")
    process = executor_of(notebook.pid)
    process.suspend()
    assert notebook.refused("restore", checkpoint=number)["ename"] == "RestoreRefused"
    process.resume()
    assert notebook.run("print(open('c').read())").out == "new"
    assert notebook.command("checkpoint")["checkpoint"]["captures"][0]["state"] == "ready"


def test_threads_go_on_where_planning_takes_long(notebook):
    number, process = before_x(notebook)
    with restoring(notebook, number) as ended:
        until(lambda: is_ready(process))
        until(lambda: not is_ready(process))  # within a second, by itself
        assert not ended
    assert ended[0]["status"] == "ok", ended
    assert notebook.run("print('x' in dir(), ticks > 0)").out == "False True"
    notebook.command("restore", undo=True)
    assert notebook.run("print(x, ticks > 0)").out == "1 True"


def test_it_is_killed_while_it_is_ready(notebook):
    number, process = before_x(notebook)
    with restoring(notebook, number) as ended:
        until(lambda: is_ready(process))
        process.kill()
        process.wait()
    assert ended[0]["ename"] == "RestoreRefused", ended
    until(lambda: notebook.run("print(x)", ok=False).out == "1")
    assert notebook.run("print(ticks > 0)").out == "True"
    notebook.command("restore", checkpoint=number)
    assert notebook.run("print('x' in dir())").out == "False"
