"""Notebooks with cells, kernels on them, and the command line as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import ROOT

MAIN = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"


def write_notebook(path: Path, *sources: str) -> None:
    """A notebook as a front end makes it: its cells have ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def on(start_notebook: Callable[..., Any]) -> Callable[..., Any]:
    """Start a kernel for a notebook as a server does: in its directory, with its name."""

    def start(path: Path, *arguments: str, cwd: Path | None = None) -> Any:
        env = {"JPY_SESSION_NAME": str(path)}
        return start_notebook(*arguments, cwd=cwd or path.parent, env=env)

    return start


def end(notebook: Any) -> None:
    """Shut the kernel down, once the checkpoint of its last cell is made."""
    notebook.head()
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel()


def call(*words: str | Path, store: Path | None = None, status: int = 0, **env: str) -> str:
    """``jupyter timetravel …`` as a child; what it prints, errors where it is to fail."""
    if store is not None:
        env["JUPYTER_TIMETRAVEL_STORE"] = str(store)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == status, out + err
    assert "Traceback" not in err, err
    return err if status else out
