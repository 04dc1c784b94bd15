"""Notebooks whose kernel runs under DMTCP: threads and child processes come back with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.durable_world import durable, kill
from tests.waiting import until

pytestmark = pytest.mark.slow

DMTCP = "--Supervisor.process_engine=dmtcp"
ON_DEMAND = (DMTCP, "--Supervisor.auto=off")

CHILDREN = """
import multiprocessing, os, socket, subprocess, sys, threading, time
def square(x): return x * x, os.getpid()
pool = multiprocessing.get_context('fork').Pool(2)
workers = {p.pid for p in pool._pool}
half = (n for n in range(100)); next(half)
ticks = [0]
def tick():
    while True: time.sleep(0.01); ticks[0] += 1
thread = threading.Thread(target=tick, daemon=True); thread.start()
number = 'import sys\\nfor n, l in enumerate(sys.stdin, 1): print(n, l.strip(), flush=True)'
shout = 'import sys\\nfor l in sys.stdin: print(l.strip().upper(), flush=True)'
first = subprocess.Popen([sys.executable, '-c', number], stdin=-1, stdout=-1, text=True)
second = subprocess.Popen([sys.executable, '-c', shout], stdin=first.stdout, stdout=-1, text=True)
serve = '''
import socket
listener = socket.create_server(('127.0.0.1', 0)); print(listener.getsockname()[1], flush=True)
count = 0
while True:
    connection, _ = listener.accept()
    for line in connection.makefile():
        count += 1; connection.sendall(f'{count} {line}'.encode())
'''
server = subprocess.Popen([sys.executable, '-c', serve], stdout=-1, text=True)
kept = socket.create_connection(('127.0.0.1', int(server.stdout.readline())))
talk = kept.makefile('rw')
log = open('log', 'w'); log.write('written'); log.flush(); log.write(', buffered')
me = os.getpid()
"""
STEP = """
found = pool.map(square, range(4), chunksize=1)
first.stdin.write('word\\n'); first.stdin.flush()
talk.write('hello\\n'); talk.flush()
before, end = ticks[0], time.monotonic() + 50
while ticks[0] == before and time.monotonic() < end: time.sleep(0.01)
log.write('.'); log.flush()
print([x for x, _ in found], {p for _, p in found} <= workers, next(half),
      second.stdout.readline().strip(), talk.readline().strip(), ticks[0] > before,
      os.getpid() == me, open('log').read())
"""


def test_children_come_back_in_the_same_kernel_and_after_kill_of_everything(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run(CHILDREN)
    text = notebook.run("%checkpoint --label all").out
    assert "all" in text
    first = notebook.run(STEP).out
    assert first == "[0, 1, 4, 9] True 1 1 WORD 1 hello True True written, buffered."
    second = notebook.run(STEP).out
    assert second == "[0, 1, 4, 9] True 2 2 WORD 2 hello True True written, buffered.."
    for _ in range(2):
        text = notebook.run("%restore all").out
        assert text.startswith("restored #") and "a fresh one" not in text, text
        assert notebook.run(STEP).out == first
    notebook.run("%restore --undo")
    assert notebook.run(STEP).out == second
    kill(notebook)
    notebook = start_notebook(*ON_DEMAND, **document)
    text = notebook.run("%restore all").out
    assert text.startswith("restored #") and "a fresh one" not in text, text
    assert notebook.run(STEP).out == first


@pytest.mark.exhaustive
def test_automatic_checkpoints_and_what_was_printed(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(DMTCP, **document)
    notebook.run("import subprocess, numpy as np; a = np.arange(5); half = (n for n in range(9))")
    notebook.run("next(half); child = subprocess.Popen(['cat'], stdin=-1, stdout=-1, text=True)")
    assert notebook.run("next(half), subprocess.run(['echo', 'out']).returncode").result == "(1, 0)"
    record = notebook.command("get", checkpoint=2)["checkpoint"]
    process = next(c for c in record["captures"] if c["kind"] == "process")
    assert process["engine"] == "dmtcp" and process["state"] == "ready"
    assert process["bytes"] > 10 << 20
    notebook.run("%restore 2")
    cell = notebook.run("subprocess.run(['echo', 'again']); print('python'); next(half)")
    assert "again" in cell.text() and "python" in cell.text() and cell.result == "1"
    assert notebook.run("child.communicate('word')[0]").result == "'word'"
    # an interrupt reaches a process that came back
    sent = notebook.send("import time\nprint('sleeping', flush=True)\ntime.sleep(100)")
    notebook.until_printed(sent)
    notebook.interrupt()
    assert notebook.wait(sent).error.startswith("KeyboardInterrupt")


def test_a_coordinator_killed_in_the_middle_of_a_checkpoint(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("half = (n for n in range(9)); x = next(half)")
    notebook.run("%checkpoint --label good")
    # a child that does not run cannot be checkpointed: DMTCP waits for it
    notebook.run(
        "import signal, subprocess; x = next(half)\n"
        "child = subprocess.Popen(['sleep', '1000']); child.send_signal(signal.SIGSTOP)"
    )
    told = _killed_in_a_checkpoint(notebook, tmp_path)
    assert "back at checkpoint #1" in told, told
    assert notebook.run("x, next(half)").result == "(0, 1)"
    notebook.run("%checkpoint")  # by a new coordinator
    notebook.run("%restore -1")
    assert notebook.run("next(half)").result == "2"


def _killed_in_a_checkpoint(notebook: Any, tmp_path: Path) -> str:
    """Kill the coordinator while a checkpoint is under way; return what is said then."""
    sent = notebook.send("%checkpoint")
    until(lambda: _children(notebook.pid, "--bcheckpoint"), "no checkpoint began")
    (coordinator,) = _processes(
        lambda argv: argv.partition(" ")[0].endswith("dmtcp_coordinator") and str(tmp_path) in argv
    )
    os.kill(coordinator, signal.SIGKILL)
    cell = notebook.wait(sent)
    return str(cell.error + cell.text("stderr") + str(notebook.settle()))


STOPPED = (
    "import signal, subprocess; child = subprocess.Popen(['sleep', '1000'])\n"
    "child.send_signal(signal.SIGSTOP)"
)


@pytest.mark.exhaustive
def test_a_coordinator_is_killed_and_the_image_before_is_damaged(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    """Then the session goes on with that checkpoint's variables, and says so."""
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("x = [1]; y = x; half = (n for n in range(9)); next(half)")
    notebook.run("%checkpoint --label good")
    assert durable(notebook, 1)["state"] == "ready", durable(notebook, 1)
    _damage(_images(tmp_path))
    notebook.run(STOPPED)
    told = _killed_in_a_checkpoint(notebook, tmp_path)
    assert "back at checkpoint #1" in told, told
    assert "does not hold what was written" in told and "a fresh one has the variables" in told
    assert "not brought back: half" in told, told
    assert notebook.run("y.append(2); x").result == "[1, 2]"
    notebook.run("more = (n for n in range(9)); next(more)")
    notebook.run("%checkpoint --label on")
    notebook.run("%restore on")
    assert notebook.run("next(more), x").result == "(1, [1, 2])"


def _images(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "store" / "dmtcp").iterdir())


def _damage(directories: set[Path]) -> None:
    images = [image for directory in directories for image in directory.glob("*.dmtcp")]
    assert images
    for image in images:
        with open(image, "r+b") as file:
            file.seek(image.stat().st_size // 2)
            file.write(b"damage")


def test_a_damaged_image_gives_way_to_the_variables(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("x = [1]; y = x; half = (n for n in range(9)); next(half)")
    notebook.run("log = open('log', 'w'); log.write('buffered')")
    notebook.run("%checkpoint --label older")
    assert durable(notebook, 1)["state"] == "ready", durable(notebook, 1)
    # the session has no child that it did not start itself
    assert notebook.run("import os; os.path.getsize('log')").result == "0"
    children = "open(f'/proc/self/task/{os.getpid()}/children').read().split()"
    assert notebook.run(children).result == "[]"
    older = _images(tmp_path)
    notebook.run("next(half); x.append(2)")
    notebook.run("%checkpoint --label newer")
    assert durable(notebook, 2)["state"] == "ready", durable(notebook, 2)
    newer = _images(tmp_path) - older

    def gave_way(text: str) -> bool:
        assert "does not hold what was written" in text, text
        assert "the process itself could not be brought back" in text, text
        assert "not brought back: half" in text, text
        return bool(notebook.run("y.append(3); x").result == "[1, 2, 3]")

    _damage(newer)
    assert gave_way(notebook.run("%restore newer").out)  # in the same kernel
    kill(notebook)
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("mine = 1")
    assert gave_way(notebook.run("%restore newer").out)
    notebook.run("%restore --undo")
    assert notebook.run("mine").result == "1"
    notebook.run("%restore older")
    assert notebook.run("next(half), x").result == "(1, [1])"
    assert notebook.run("%restore newer --vars x").out and notebook.run("x").result == "[1, 2]"
    for blob in (tmp_path / "store" / "namespaces").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"damage" + blob.read_bytes()[6:])
    notebook.run("mine = 2")
    error = notebook.run("%restore newer", ok=False).error
    assert "does not hold what was written" in error and "back where you were" in error
    assert notebook.run("mine, next(half)").result == "(2, 2)"


@pytest.mark.exhaustive
def test_files_that_dmtcp_copies_and_what_it_does_not_hold(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("import os, socket; gone = open('gone', 'w+b'); gone.write(b'deleted')")
    notebook.run("gone.flush(); os.remove('gone'); os.umask(0o27)")
    notebook.run("%checkpoint --label files")
    assert _not_held(notebook, "files") == []
    (copied,) = (tmp_path / "store" / "dmtcp").glob("*/*_files/gone*")
    altered = "gone.seek(0); gone.write(b'altered'); gone.flush(); os.umask(0);"
    check = "gone.seek(0); print(gone.read(), oct(os.umask(0o27)))"
    for _ in range(2):  # what a restored process writes does not reach the store
        notebook.run(altered)
        assert notebook.run("%restore files").out.startswith("restored")
        assert notebook.run(check).out == "b'deleted' 0o27"
    assert copied.read_bytes() == b"deleted"
    kill(notebook)
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("%restore files")
    assert notebook.run(check).out == "b'deleted' 0o27"
    # what DMTCP would lose without a word is said by the checkpoint
    notebook.run("log = open('log', 'w'); second = os.dup(log.fileno()); os.nice(1)")
    notebook.run("pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)")
    notebook.run("%checkpoint --label lossy")
    lost = sorted(_not_held(notebook, "lossy"))
    kinds = ["descriptor", "setting", "setting", "socket", "socket"]
    assert [one.split()[0] for one in lost] == kinds, lost
    # nice(2) is of the thread that calls it: the others are not as the first one any more
    settings = ["setting nice value", "setting nice value or processors of single threads"]
    assert lost[1:3] == settings
    number = notebook.command("get", checkpoint="lossy")["checkpoint"]["number"]
    assert durable(notebook, number)["state"] == "ready"
    text = notebook.run("%restore lossy").out
    assert "could not be brought back" in text and "a fresh one has the variables" in text, text
    # a copy that was altered
    copied.chmod(0o600)
    copied.write_bytes(b"damaged")
    cell = notebook.run("%restore files", ok=False)
    assert "does not hold what was written" in cell.error + cell.out


def _not_held(notebook: Any, checkpoint: str) -> list[str]:
    record = notebook.command("get", checkpoint=checkpoint)["checkpoint"]
    process = next(c for c in record["captures"] if c["engine"] == "dmtcp")
    return [f"{note['kind']} {note['subject']}" for note in process["not_captured"]]


@pytest.mark.exhaustive
def test_polars_where_the_server_has_imported_polars(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    pytest.importorskip("polars")
    set_by_polars = {"_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:1000"}
    started = {**document, "env": {**document["env"], **set_by_polars}}
    notebook = start_notebook(*ON_DEMAND, **started)
    notebook.run("import polars as pl; pl.DataFrame({'k': range(1000)}).group_by('k').len()")
    notebook.run("%checkpoint")
    notebook.run("%restore -1")
    assert notebook.run("pl.Series([1, 2]).sum()").result == "3"


@pytest.mark.exhaustive
def test_what_dmtcp_does_to_the_environment(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """As docs/dmtcp.md says."""
    notebook = start_notebook(*ON_DEMAND, **document)
    notebook.run("import os, subprocess, sys")
    assert notebook.run("'libdmtcp' in open('/proc/self/maps').read()").result == "True"
    # children run under it too
    child = "print('libdmtcp' in open('/proc/self/maps').read())"
    shown = notebook.run(f"subprocess.run([sys.executable, '-c', {child!r}]);").text()
    assert shown.strip() == "True"
    notebook.run("me = os.getpid()")
    notebook.run("%checkpoint")
    notebook.run("%restore -1")
    assert notebook.run("os.getpid() == me and os.path.exists(f'/proc/{me}/maps')").result == "True"
    assert notebook.run("os.environ['OPENBLAS_NUM_THREADS']").result == "'1'"
    notebook.run("import numpy; subprocess.run(['true'])")
    notebook.run("try: import polars\nexcept ImportError: pass")
    # a child in another directory is named
    notebook.run("os.mkdir('elsewhere')")
    notebook.run("child = subprocess.Popen(['sleep', '99'], cwd='elsewhere')")
    notebook.run("os.chdir('elsewhere')")
    # files outside of the workspace go back with it
    notebook.run("mine = os.path.expanduser('~/under-dmtcp'); log = open(mine, 'w')")
    notebook.run("log.write('one'); log.flush()")
    notebook.run("%checkpoint --label here")
    record = notebook.command("get", checkpoint="here")["checkpoint"]
    notes = next(c for c in record["captures"] if c["engine"] == "dmtcp")["not_captured"]
    assert [n["kind"] for n in notes] == ["child process"] and "sleep" in notes[0]["subject"]
    notebook.run("os.chdir('/'); log.write(' two'); log.flush(); os.remove(mine)")
    notebook.run("%restore here")
    assert notebook.run("os.path.basename(os.getcwd())").result == "'elsewhere'"
    assert notebook.run("log.write('.'); log.flush(); open(mine).read()").result == "'one.'"
    notebook.run("me = 0")
    notebook.run("%restore here --vars me")
    assert notebook.run("me == os.getpid()").result == "True"
    notebook.run("open(os.path.expanduser('~/outside-of-the-workspace'), 'w').close()")
    error = notebook.run("%restore here --only files", ok=False).error
    assert "Restore the process too" in error
    kill(notebook)
    other = start_notebook(**document)
    text = other.run("%restore here").out
    assert "captured by dmtcp" in text and "process_engine=dmtcp" in text, text
    assert "a fresh one has the variables" in text and other.run("me").result, text


def test_refused_with_its_reason(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    env = {**document["env"], "PATH": str(document["cwd"])}
    notebook = start_notebook(*ON_DEMAND, cwd=document["cwd"], env=env)
    error = notebook.run("1", ok=False).error
    assert "dmtcp_coordinator" in error and "Install DMTCP 3" in error


def test_an_encrypted_store_is_refused_at_the_start(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    key = tmp_path / "private" / "store.key"
    key.parent.mkdir(mode=0o700)
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    env = {**document["env"], "JUPYTER_TIMETRAVEL_ENCRYPTION": str(key)}
    notebook = start_notebook(*ON_DEMAND, cwd=document["cwd"], env=env)
    error = notebook.run("1", ok=False).error
    assert "the store is encrypted" in error and "process_engine=fork" in error, error
    assert not list(tmp_path.glob("store/dmtcp/*"))


def _processes(wanted: Callable[[str], bool]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted((path / "cmdline").read_text().replace("\0", " ")):
                found.append(int(path.name))
    return found


def _children(parent: int, word: str) -> list[int]:
    found = []
    for pid in _processes(lambda argv: word in argv):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(pid)
    return found


def test_what_a_checkpoint_would_not_end_with_is_refused_by_name(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """The session goes on; with the socket closed it is checkpointed as before."""
    notebook = start_notebook(*ON_DEMAND, **document)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        notebook.run(f"import socket; it = iter('abc'); at = ('127.0.0.1', {port})")
        notebook.run("out = socket.create_connection(at)")
        assert f"over TCP to another program, at port {port}" in _refused(notebook)
        notebook.run("out.close(); aim = socket.socket(type=socket.SOCK_DGRAM)")
        notebook.run("aim.connect(at); x = next(it)")
        assert "a datagram socket that is connected" in _refused(notebook)
    notebook.run("aim.close()")
    notebook.run("%checkpoint --label good")
    notebook.run("next(it)")
    assert notebook.run("%restore good").out.startswith("restored #")
    assert notebook.run("x, next(it)").result == "('a', 'b')"


def _refused(notebook: Any) -> str:
    notebook.run("%checkpoint")
    record = notebook.command("get", checkpoint=notebook.head()["number"])["checkpoint"]
    process = next(c for c in record["captures"] if c["engine"] == "dmtcp")
    assert process["state"] == "failed"
    return str(process["error"])
