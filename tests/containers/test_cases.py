"""Cases docker-01, docker-04 and docker-08: what a process shares with the world outside."""

from __future__ import annotations

import builtins
import contextlib
import json
import queue
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook
from tests.containers.conftest import START, container, durable, of_a_notebook, revive
from tests.waiting import until


class Echo:
    """An echo server on the host."""

    def __init__(self) -> None:
        self._server = socket.create_server(("0.0.0.0", 0))
        self.port = self._server.getsockname()[1]
        self._peers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            while data := peer.recv(100):
                peer.sendall(data)
        except OSError:
            return

    def stop(self) -> None:
        for one in (self._server, *self._peers):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def lose_container(notebook: Notebook, label: str, docker: Any, place: Path) -> dict[str, Any]:
    """The container goes away, and the next one restores a checkpoint; the restore result."""
    until(lambda: durable(notebook, label), f"{label} is on the disk")
    container(docker, place).remove(force=True)
    revive(notebook)
    return notebook.command("restore", checkpoint=label)


@pytest.mark.timeout(300)
def test_a_connection_to_the_host_is_cut_and_seen(start: START, place: Path, docker: Any) -> None:
    """docker-01: the server is there, then stopped, then the container is another one."""
    echo = Echo()
    notebook = start(env=of_a_notebook(place))
    notebook.run(
        "import socket\n"
        f"s = socket.create_connection(('host.docker.internal', {echo.port})); s.settimeout(50)\n"
        "s.sendall(b'one'); print(s.recv(3))"
    )
    notebook.run("k = 41\n%checkpoint --label c2")
    notebook.run("k += 1")
    listed = notebook.command("list")["checkpoints"]
    assert all(any(c["number"] == n for c in listed) for n in (1, 2, 3))
    [process] = [
        c
        for c in notebook.command("get", checkpoint="c2")["checkpoint"]["captures"]
        if c["engine"] == "fork"
    ]
    assert str(echo.port) in json.dumps(process["not_captured"])
    use = (
        "try:\n    s.sendall(b'two'); print('reply', s.recv(3))\n"
        "except OSError as e:\n    print('conn', type(e).__name__)\nprint(k)"
    )

    def used(told: dict[str, Any], engine: str) -> None:
        """The restore says what it took, and that one connection was cut; using that fails."""
        assert told["process"] == engine
        cut = [text for text in told["warnings"] if "connection: fd " in text]
        assert len(cut) == 1 and f"port {echo.port}: is not connected" in cut[0], told["warnings"]
        cell = notebook.run(use)
        found = re.fullmatch(r"conn (\w+)\n41", cell.out)
        assert found is not None, cell.out
        assert issubclass(getattr(builtins, found[1]), OSError)
        # one reply, and the kernel is idle
        assert [m["content"]["execution_state"] for m in cell.of_type("status")] == ["busy", "idle"]
        with pytest.raises(queue.Empty):
            notebook.client.get_shell_msg(timeout=0.5)

    for stopped in (False, True):
        if stopped:
            echo.stop()
        used(notebook.command("restore", checkpoint="c2"), "fork")
    told = lose_container(notebook, "c2", docker, place)
    assert "the process from its image on the disk" in told["text"]
    used(told, "image")


@pytest.mark.timeout(300)
def test_shared_memory(start: START, place: Path, docker: Any) -> None:
    """docker-04: it is as large as the memory, goes back, and outlives the container."""
    notebook = start(
        memory="4g", env=of_a_notebook(place)
    )  # of which a quarter may hold checkpoints
    notebook.run(
        "from multiprocessing import shared_memory as sm\n"
        "b = sm.SharedMemory(create=True, size=256 * 2**20, name='tt_case')\n"
        "import numpy as np\n"
        "v = np.ndarray((2**20,), dtype=np.int64, buffer=b.buf); v[:] = 7"
    )
    limit = notebook.run("import os; s = os.statvfs('/dev/shm'); print(s.f_frsize * s.f_blocks)")
    assert int(limit.out) == 4 << 30, "as much as the memory"
    notebook.run("v[:] = 8\n%checkpoint --label c2")
    look = "b2 = sm.SharedMemory(name='tt_case'); print(b2.buf[0], int(v[-1])); b2.close()"
    assert notebook.run(look).out == "8 8"
    notebook.run("%restore 1")
    assert notebook.run(look).out == "7 7"
    told = lose_container(notebook, "c2", docker, place)
    assert notebook.run(look).out == "8 8", told["text"]
    notebook.manager.shutdown_kernel()
    assert not Path("/dev/shm/tt_case").exists()


@pytest.mark.parametrize("covered", [True, False], ids=["workspace", "mount"])
def test_a_log_that_grew_and_was_renamed(start: START, place: Path, covered: bool) -> None:
    """docker-08: in the workspace it goes back; on a mount that nobody captures it stays."""
    mount = place / "mount"
    mount.mkdir()
    notebook = start(mounts=[f"{mount}:{mount}"])
    top = "" if covered else f"{mount}/"
    notebook.run(
        f"import os; top = {top!r}\n"
        "fh = open(top + 'run.log', 'a', buffering=1); fh.write('L1\\n')\n"
        "rd = open(top + 'run.log'); first = rd.readline()"
    )
    notebook.run("fh.write('L2\\n')")
    notebook.run(
        "fh.write('L3\\n'); os.rename(top + 'run.log', top + 'run.old')\n"
        "fh2 = open(top + 'run.log', 'a', buffering=1); fh2.write('new\\n')"
    )
    report = notebook.run("%restore 2").out
    assert "restored #2" in report
    if covered:
        cell = notebook.run(
            "fh.write('L2b\\n'); fh.flush()\n"
            "print(open('run.log').read().split(), rd.readline().strip())\n"
            "print(os.path.exists('run.old'))"
        )
        assert cell.out == "['L1', 'L2', 'L2b'] L2\nFalse"
        return
    assert notebook.run("print(repr(first))").out == "'L1\\n'"
    other = f"{mount}/run.log: another file is there now (4 bytes, then 6), opened again"
    assert f"{other} to append to it" in report
    assert f"{other} at its old offset" in report, "the one that is read"
    # what the host has stays as it is, and what is written goes to the end of what is there now
    notebook.run("fh.write('L2b\\n'); fh.flush()")
    assert (mount / "run.old").read_bytes() == b"L1\nL2\nL3\n"
    assert (mount / "run.log").read_bytes() == b"new\nL2b\n"
