"""The cases that are about a Jupyter server: who asks it, and its end in the middle of the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_world import MAIN, agent, ended
from test_cases_agent_store import REPOSITORY, complete, git, state_of_git

from tests.server.server_world import Server, running

Start = Callable[..., Any]
DELAYS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9, 1.4, 2.0)
SOME = slice(None) if os.environ.get("TT_WHOLE") == "1" else slice(1, None, 3)


@contextmanager
def server_at(top: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server, and this process as a shell of its user.

    Its kernelspec "patient" is of kernels that write all that they hold before they end.
    """
    folder = top / "data" / "kernels" / "patient"
    folder.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    argv = [*program, "--Supervisor.durability_at_end=60"]
    spec = {"argv": argv, "display_name": "x", "language": "python", "interrupt_mode": "message"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    with running(top, JUPYTER_PATH=str(top / "data")) as server:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "PYTHONPATH"):
            monkeypatch.setenv(name, server.env[name])
        for name in ("JUPYTER_TIMETRAVEL_STORE", "JUPYTER_TIMETRAVEL_KEYS"):
            monkeypatch.setenv(name, server.env[name])
        yield server


async def test_11_the_head_is_the_same_for_a_server_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tt: Start
) -> None:
    with server_at(tmp_path, monkeypatch) as server:
        kernel = server.start("a.ipynb")
        book = server.notebooks / "a.ipynb"
        of_cell: list[str] = []

        def cell(code: str) -> None:
            kernel.run(code)
            of_cell.append(tt("list", book, "--json")["head"])

        async with agent() as ask:
            with server.as_user() as http:

                async def is_head(wanted: str) -> None:
                    """For whoever asks, in each way of asking."""
                    rest = http.get(f"/sessions/{kernel.id}/checkpoints").json()
                    status = http.get(f"/sessions/{kernel.id}/status").json()
                    heads = {
                        "command line": tt("list", book, "--json")["head"],
                        "status": tt("status", book, "--json")["head"]["id"],
                        "rest": rest["head"],
                        "rest, by its list": next(
                            one["id"] for one in rest["checkpoints"] if one["is_head"]
                        ),
                        "rest, status": status["head"]["id"],
                        "mcp": (await ask("list_checkpoints", notebook=str(book)))["head"],
                        "mcp, status": (await ask("status", notebook=str(book)))["head"]["id"],
                    }
                    assert set(heads.values()) == {wanted}, heads

                for code in ("t = ['a']", "t.append('b')", "t.append('c')"):
                    cell(code)
                await is_head(of_cell[2])
                went = http.post(f"/sessions/{kernel.id}/restore", json={"checkpoint": of_cell[0]})
                assert went.status_code == 200, went.text
                await is_head(of_cell[0])
                cell("t.append('X')")
                cell("t.append('Y')")
                await is_head(of_cell[4])
                await ask("restore", notebook=str(book), checkpoint=of_cell[2])
                await is_head(of_cell[2])
                cell("t.append('Z')")
                await is_head(of_cell[5])
                tt("restore", book, of_cell[4])
                await is_head(of_cell[4])
                assert kernel.run("print(t)") == "['a', 'X', 'Y']"
                parents = tt("list", book, "--json")["parents"]
        found = {of_cell.index(one): of_cell.index(parents[one]) for one in of_cell[1:]}
        assert found == {1: 0, 2: 1, 3: 0, 4: 3, 5: 2}


@pytest.mark.slow
@pytest.mark.timeout(900)  # each time a server and a kernel begin, and end
def test_07_the_jupyter_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tt: Start
) -> None:
    """With SIGKILL, so many seconds after somebody began to ask for a checkpoint."""
    book = tmp_path / "notebooks" / "a.ipynb"
    before: Any = None
    for number, delay in enumerate(DELAYS_S[SOME]):
        with server_at(tmp_path, monkeypatch) as server:
            kernel = server.start("a.ipynb", "patient")
            if before is None:
                kernel.run(REPOSITORY)
                tt("checkpoint", book, "--label", "good")
                before, log = state_of_git(book.parent), git(book.parent, "log", "--oneline")
            else:
                kernel.run("y = 1")  # the next checkpoint needs nobody to clean up
                assert tt("checkpoint", book, "--label", f"next {number}", "--json")["checkpoint"]
            kernel.run(f"x = {number}; open('big.bin', 'r+b').write(b'{number}' * 1000);")
            changed = git(book.parent, "status", "--porcelain")
            family = psutil.Process(server.process.pid).children(recursive=True)
            asking = subprocess.Popen(
                [sys.executable, "-c", MAIN, "checkpoint", str(book), "--label", "mid"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(delay)
            server.process.kill()
            assert not psutil.wait_procs(family, timeout=110)[1]
            asking.wait(timeout=110)
        ended(tt, book)
        assert state_of_git(book.parent)[1:] == before[1:]
        assert git(book.parent, "status", "--porcelain") == changed
        complete(tt, book, "mid")
    tt("restore", book, "good")
    assert state_of_git(book.parent) == before
    assert git(book.parent, "log", "--oneline") == log
