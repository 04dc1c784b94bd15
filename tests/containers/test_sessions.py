"""Sessions in containers: they go back, outlive their container and their server, leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.containers import orphans
from jupyter_timetravel.containers.daemon import LABEL, Daemon
from tests.containers.conftest import PACKAGES, START, container, ours
from tests.waiting import PATIENCE


def test_a_session_goes_back(start: START, place: Path, docker: Any) -> None:
    notebook = start(memory="2g", cpus=1.5)
    facts = container(docker, place).attrs["HostConfig"]
    assert facts["CapDrop"] == ["ALL"]
    assert (facts["Memory"], facts["NanoCpus"]) == (2 << 30, 1_500_000_000)
    notebook.run(
        f"{PACKAGES}\nx = [1]; os.makedirs('dd'); open('dd/s.sh', 'w').write('x')\n"
        "os.chmod('dd/s.sh', 0o750); open('r.txt', 'w').write('1')"
    )
    notebook.run("import itertools; it = itertools.count(); next(it)")
    # what a cell breaks: a package, the home directory, the workspace
    broken = notebook.run(
        "!rm -rf {here}/dill* ~/.cache; touch ~/new; rm dd/s.sh; echo 2 > r.txt\n"
        "x.append(2); next(it); print(os.path.exists(here + '/dill'), os.path.exists('dd/s.sh'))"
    )
    assert broken.out == "False False"
    assert "restored #2" in notebook.run("%restore 2").out
    back = notebook.run(
        "print(x, next(it), os.path.exists(here + '/dill'), open('r.txt').read(),\n"
        "      os.path.exists(os.path.expanduser('~/new')), os.access(os.path.expanduser('~'), 2))"
    )
    assert back.out == "[1] 1 True 1 False True"
    for name, mode in (("r.txt", None), ("dd", None), ("dd/s.sh", 0o750)):
        found = (place / "work" / name).stat()
        assert found.st_uid == os.getuid()
        assert mode is None or found.st_mode & 0o777 == mode
    (place / "work" / "dd" / "s.sh").unlink()
    assert "connection.json" not in notebook.run(f"!ls {place}/r/*").out
    notebook.manager.shutdown_kernel()
    assert ours(docker, place) == []
    assert list((place / "r").glob("timetravel-c-*")) == []


SERVER = """
import os, sys, time
from tests.containers.conftest import Manager, declare
declare()
manager = Manager()
manager.settings = {"image": sys.argv[1]}
manager.start_kernel(cwd=sys.argv[2], env={**os.environ, "JPY_SESSION_NAME": sys.argv[3]})
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive("x = 41; import os; print(os.getpid(), flush=True)")
print("ready", flush=True)
time.sleep(1e6)
"""


def killed_server(image: str, place: Path, notebook: Path) -> None:
    """A server that starts a kernel for a notebook and is killed."""
    command = [sys.executable, "-c", SERVER, image, str(place / "work"), str(notebook)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if line.strip() == "ready":
            break
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()


def test_a_killed_server_and_the_next_one(
    start: START, place: Path, docker: Any, image: str
) -> None:
    document = place / "work" / "a.ipynb"
    killed_server(image, place, document)
    [left] = ours(docker, place)
    left.pause()  # it has not ended: nobody's start removes it, and its own notebook wakes it
    other = start(env={"JPY_SESSION_NAME": str(place / "work" / "b.ipynb")})
    assert "NameError" in other.run("x", ok=False).error
    same = start(env={"JPY_SESSION_NAME": str(document)})
    assert same.run("x + 1").result == "42"
    assert left.id in {c.id for c in ours(docker, place)}
    assert "restored" in same.run("%restore 1").out
    same.manager.restart_kernel()
    same.client.wait_for_ready(timeout=PATIENCE)
    assert "NameError" in same.run("x", ok=False).error


def test_what_nobody_comes_back_for(place: Path, docker: Any, image: str, daemon: Daemon) -> None:
    killed_server(image, place, place / "work" / "a.ipynb")
    [left] = ours(docker, place)
    assert left.id not in orphans.sweep(daemon, place / "r", hours=1)
    seen = Path(left.labels[f"{LABEL}.runtime"], orphans.SEEN)
    os.utime(seen, (time.time() - 7200,) * 2)
    assert left.id in orphans.sweep(daemon, place / "r", hours=1)
    assert ours(docker, place) == []
    assert list((place / "r").glob("timetravel-c-*")) == []


@pytest.mark.root
def test_a_server_of_root_runs_containers_as_root(start: START) -> None:
    """All ids exist in its sandbox: what belongs to others goes back too."""
    notebook = start()
    notebook.run(f"{PACKAGES}\nx = 1; print(os.getuid())")
    notebook.run("!rm -rf {here}/dill; echo x > /var/local/x\nx = 2")
    assert not notebook.command("status")["environment"]["not_covered"].keys() & {"/opt", "/usr"}
    notebook.run("%restore 1")
    look = "print(x, os.path.exists(here + '/dill'), os.path.exists('/var/local/x'))"
    assert notebook.run(look).out == "1 True False"


def test_kernels_that_start_at_once(
    place: Path, image: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one clears away is not what the other looks at the image with."""
    monkeypatch.setattr("jupyter_timetravel.containers.daemon._looked", {})
    ended = threading.Event()

    def clear() -> None:
        with contextlib.closing(Daemon()) as other:
            while not ended.is_set():
                orphans.sweep(other, place / "r", hours=1)

    other = threading.Thread(target=clear)
    other.start()
    try:
        for number in range(3):
            user = f"{os.getuid()}:{os.getgid() + number}"  # or it would be known
            assert daemon.packages(image, "python", user).version
    finally:
        ended.set()
        other.join()


def test_a_container_that_is_paused(start: START, place: Path, docker: Any) -> None:
    notebook = start()
    notebook.run("x = 1")
    notebook.head()
    box = container(docker, place)
    box.pause()
    assert notebook.manager.is_alive(), "it is not dead, and Jupyter must not start it anew"
    asked = notebook.client.execute("x += 1; print(x)")
    box.unpause()
    assert notebook.client.get_shell_msg(timeout=PATIENCE)["parent_header"]["msg_id"] == asked
    assert notebook.run("print(x)").out == "2"
    notebook.run("%restore 1")
    assert notebook.run("print(x)").out == "1"
    box.pause()
    notebook.manager.shutdown_kernel(now=True)
    assert ours(docker, place) == []
