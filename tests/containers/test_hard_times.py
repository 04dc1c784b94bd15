"""What befalls a container from outside: other servers, a full disk, removal in a restore."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.cli import main
from jupyter_timetravel.containers.daemon import LABEL
from jupyter_timetravel.containers.errors import ContainerError
from tests.containers.conftest import START, container, of_a_notebook, ours, revive
from tests.containers.test_sessions import killed_server
from tests.waiting import PATIENCE

MIB = 1 << 20


def numbers(notebook: Any) -> list[int]:
    return [c["number"] for c in notebook.command("list")["checkpoints"]]


def test_two_servers_open_one_notebook(start: START, place: Path, docker: Any) -> None:
    """The second one has a container and a timeline of its own, and neither spoils the other."""
    env = of_a_notebook(place)
    one = start(env=env, network="none")
    one.run("x = 1; open('f', 'w').write('one')")
    one.head()
    two = start(env=env, network="none")
    assert len(ours(docker, place)) == 2
    cell = two.run("x = 'two'; print(open('f').read())")
    told = "".join(message["content"]["text"] for message in cell.of_type("stream"))
    assert "Another kernel" in told and "has this notebook's timeline" in told
    assert cell.out == "one"
    for number in range(3):
        asked = [kernel.send(f"x = {number}") for kernel in (one, two)]
        for kernel, id in zip((one, two), asked, strict=True):
            kernel.wait(id)
    assert "restored" in one.run("%restore 1").out
    assert "restored" in two.run("%restore 1").out
    assert [kernel.run("print(x)").out for kernel in (one, two)] == ["1", "two"]
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    kept = numbers(one)
    one.manager.shutdown_kernel()
    assert len(ours(docker, place)) == 1, "the other one's is left alone"
    two.manager.restart_kernel()
    two.client.wait_for_ready(timeout=PATIENCE)
    assert set(kept) <= set(numbers(two)), "the notebook's timeline is free: it goes on with it"
    two.manager.shutdown_kernel()
    assert main(["check", "--store", str(store)]) == 0


ADOPT = """
import sys, time
from pathlib import Path
from jupyter_timetravel.containers import orphans
from jupyter_timetravel.containers.daemon import Daemon
daemon = Daemon()
[left] = [c for c in daemon.ours() if c.labels.get("directory") == sys.argv[1]]
wanted = {key: left.labels[key] for key in ("notebook", "directory", "options")}
print("ready", flush=True)
sys.stdin.readline()
found = orphans.find(daemon, wanted, left.image)
print(found is not None, flush=True)
sys.stdin.readline()
"""


def test_one_of_several_servers_takes_up_what_a_killed_one_left(
    start: START, place: Path, docker: Any, image: str
) -> None:
    document = place / "work" / "a.ipynb"
    killed_server(image, place, document)
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", ADOPT, str(place / "work")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    def all_say() -> list[str]:
        return [one.stdout.readline().strip() for one in servers]  # type: ignore[union-attr]

    def tell_all() -> None:
        for one in servers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()

    try:
        assert all_say() == ["ready"] * 4
        tell_all()
        assert sorted(all_say()) == ["False"] * 3 + ["True"]
        [left] = ours(docker, place)
        # while that one lives: neither found again, nor swept away as nobody's
        runtime = Path(left.labels["jupyter-timetravel.runtime"])
        os.utime(runtime / "seen", (time.time() - 200_000,) * 2)
        env = {"JPY_SESSION_NAME": str(document)}
        other = start(env=env)
        assert "NameError" in other.run("x", ok=False).error
        assert left.id in {c.id for c in ours(docker, place)}
        other.manager.shutdown_kernel()
        os.utime(runtime / "seen")
    finally:
        tell_all()
        for one in servers:
            one.communicate(timeout=PATIENCE)
    same = start(env=env)
    assert same.run("x + 1").result == "42"


@pytest.mark.slow
def test_a_container_is_removed_during_a_restore(start: START, place: Path, docker: Any) -> None:
    """The next one has all files as they were before or as they are to be, and restores."""
    notebook = start(env=of_a_notebook(place), network="none")
    count = 4000
    write = "for k in range({count}): open(f'f{{k}}', 'w').write('{text}')"
    notebook.run(f"x = 'old'\n{write.format(count=count, text='old')}")
    notebook.run(f"x = 'new'\n{write.format(count=count, text='new')}\n%checkpoint --label new")
    notebook.head()
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    box = container(docker, place)
    notebook.send("%restore 1")
    end = time.monotonic() + PATIENCE
    while not any((store / "journal").iterdir()):
        if notebook.client.shell_channel.msg_ready():
            break  # it is done already
        assert time.monotonic() < end
        time.sleep(0.001)
    box.remove(force=True)
    work = place / "work"

    def texts() -> set[str]:
        return {(work / f"f{k}").read_text() for k in range(count)}

    revive(notebook)
    notebook.run("")
    assert texts() in ({"old"}, {"new"}), "what was cut short is finished or undone"
    for name, text in (("1", "old"), ("new", "new"), ("1", "old")):
        assert "restored #" in notebook.run(f"%restore {name}").out
        assert texts() == {text}
    notebook.manager.shutdown_kernel()
    assert main(["check", "--store", str(store)]) == 0


class Forwarder:
    """A daemon's socket that can go away: what comes is passed on to the real one."""

    def __init__(self, path: Path, real: str) -> None:
        self._path, self._real = str(path), real
        self._open: list[socket.socket] = []
        self.start()

    @property
    def address(self) -> str:
        return f"unix://{self._path}"

    def start(self) -> None:
        Path(self._path).unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self._path)
        self._server.listen(20)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens, and what was open is cut."""
        Path(self._path).unlink()
        for one in (self._server, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._real)
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory in which the path of a socket is not too long; it outlives the kernels."""
    with tempfile.TemporaryDirectory(prefix="tt-", dir="/tmp") as name:
        yield Path(name)


def test_the_daemon_goes_away(short: Path, start: START, place: Path, docker: Any) -> None:
    """The kernel works on and is not restarted; shut down, it is removed by the next start."""
    real = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    forwarder = Forwarder(short / "d.sock", real)
    settings = {"docker_host": forwarder.address, "network": "none"}
    notebook = start(**settings)
    notebook.run("x = 1")
    forwarder.stop()
    assert notebook.manager.is_alive()
    assert notebook.run("print(x)").out == "1"
    with pytest.raises(ContainerError, match="went away, so the kernel was not restarted"):
        notebook.manager.restart_kernel(now=True)
    assert notebook.run("print(x)").out == "1"
    forwarder.start()
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=PATIENCE)
    assert "NameError" in notebook.run("x", ok=False).error
    forwarder.stop()
    notebook.manager.shutdown_kernel(now=True)
    [left] = ours(docker, place)
    with pytest.raises(ContainerError, match="There is no Docker daemon"):
        start(**settings)
    forwarder.start()
    start(**settings).run("x = 1")
    [new] = ours(docker, place)
    assert new.id != left.id
    assert Path(new.labels[f"{LABEL}.runtime"]).is_dir()
    assert not Path(left.labels[f"{LABEL}.runtime"]).exists()


@pytest.fixture
def small_volume(place: Path, ability: Any) -> Iterator[Path]:
    """What containers keep is on a disk of 160 MiB."""
    where = place / "data"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={160 * MIB},mode=700", "tmpfs", str(where)]
    ability("mount tmpfs", subprocess.run(mount, check=False).returncode == 0)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.root
def test_the_volume_is_full(small_volume: Path, start: START, place: Path) -> None:
    """At a checkpoint and at a restore: both say so, the session goes on; with room all is well."""
    notebook = start(env=of_a_notebook(place), network="none")
    notebook.run("x = 1; import os; open('f', 'w').write('1'); open('/opt/e', 'w').write('1')")
    notebook.run("%checkpoint --label one")
    filler = small_volume / "filler"
    with open(filler, "ab") as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError:
                continue
    (place / "work" / "big").write_bytes(os.urandom(20 * MIB))  # has no room in the store
    cells = [
        notebook.run("x = 2; open('f', 'w').write('2')"),
        notebook.run("%checkpoint --label two", ok=False),
        notebook.run("print(x)"),
    ]
    told = "".join(m["content"]["text"] for cell in cells for m in cell.of_type("stream"))
    assert "No space left" in told or "No room" in told or "full" in told, told
    assert cells[-1].out == "2"
    cell = notebook.run("%restore one", ok=False)
    state = notebook.run("print(x, open('f').read(), open('/opt/e').read())").out
    assert state.endswith("1 1 1" if "restored #" in cell.out else "2 2 1"), (cell, state)
    filler.unlink()
    (place / "work" / "big").unlink()
    assert "restored #" in notebook.run("%restore one").out
    assert notebook.run("print(x, open('f').read(), open('/opt/e').read())").out == "1 1 1"
    notebook.run("x = 3; open('/opt/e', 'w').write('3')\n%checkpoint --label three")
    notebook.run("%restore one")
    notebook.run("%restore three")
    assert notebook.run("print(x, open('f').read(), open('/opt/e').read())").out == "3 1 3"
