"""Cases `store` that need a file server: the whole store lies on one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from environment_tools import checkpoint

from kernel_runtime.store.database_file import FILE_NAME
from tests.kernel.durable_world import durable


@pytest.mark.root
def test_04_the_store_on_a_network_filesystem(file_server: Any, play: Any) -> None:
    mounted, source = file_server()
    document = mounted / "work/n.ipynb"
    (source / "work/n.ipynb").write_text("{}")  # the server lets root write nothing
    os.chown(source / "work/n.ipynb", 12345, 12345)
    where = {
        "JUPYTER_TIMETRAVEL_STORE": str(mounted / "store"),
        "JPY_SESSION_NAME": str(document),
        "W": str(mounted / "work"),
    }
    notebook = play(covered=False, **where)
    notebook.run("x = 1; open('f', 'w').write('1')")
    a = checkpoint(notebook, "on nfs")
    assert durable(notebook, a)["state"] == "ready"
    notebook.run("x = 2; open('f', 'w').write('2')")
    notebook.run(f"%restore {a}")
    assert notebook.run("print(x, open('f').read())").out == "1 1"
    # a journal that needs no memory that several machines would have to share
    assert _journals(source) == []
    # the client's machine goes down: everything of it, at once
    for _ in range(3):
        os.kill(notebook.pid, signal.SIGKILL)
        notebook.manager.shutdown_kernel(now=True)
        notebook = play(covered=False, **where)
        notebook.run("1")
        notebook.run(f"%restore {a}")
        assert notebook.run("print(x, open('f').read())").out == "1 1"
        notebook.run("x = 3; open('f', 'w').write('3')")
    assert "held" in notebook.run(f"%timetravel verify {a}").out


@pytest.mark.root
def test_04_locks_that_never_answer(file_server: Any, play: Any, tmp_path: Path) -> None:
    """The kernel says so and runs without a stored timeline; commands end with the same words."""
    mounted, _ = file_server(LOCKS="silent")
    notebook = play(covered=False, JUPYTER_TIMETRAVEL_STORE=str(mounted / "store"))
    told = notebook.run("x = 1").text("stderr")
    assert f"The store {mounted / 'store'} lies on a filesystem (fuse)" in told, told
    assert "Set JUPYTER_TIMETRAVEL_STORE to a directory on a local disk" in told
    notebook.run("x = 2")
    notebook.run("%restore 1")
    assert notebook.run("print(x)").out == "1"


def _journals(source: Path) -> list[str]:
    beside = (source / "store").glob(f"{FILE_NAME}-*")
    return [path.name for path in beside if not path.name.endswith("-journal")]
