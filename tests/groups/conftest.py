"""Real kernels that work in one folder, and the command line beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_timetravel import cli
from tests.conftest import Notebook
from tests.waiting import PATIENCE

MAIN = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"


@dataclass
class Done:
    """What came of one command in a process of its own."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """Of a command with ``--json``."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Command:
    """A command that runs beside the test."""

    def __init__(self, words: tuple[Any, ...], fault: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TIMETRAVEL_FAULT": fault},
        )

    def wait(self) -> Done:
        """Until it has ended."""
        out, err = self.process.communicate(timeout=PATIENCE * 2)
        return Done(self.process.returncode, out, err)

    def was_killed(self) -> bool:
        """Whether it ended as its fault says."""
        return self.wait().status == -signal.SIGKILL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where all members work."""
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def on(start_notebook: Callable[..., Notebook], folder: Path) -> Callable[..., Notebook]:
    """Start a kernel for a notebook of the shared folder, as a server does."""

    def start(name: str, *arguments: str, **env: str) -> Notebook:
        book = folder / f"{name}.ipynb"
        if not book.exists():
            nbformat.write(nbformat.v4.new_notebook(), book)
        env = {"JPY_SESSION_NAME": str(book), **env}
        return start_notebook(*arguments, cwd=folder, env=env, listed=True)

    return start


@pytest.fixture
def tt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run ``jupyter timetravel …``: the object of ``--json``, or with a status what it says."""

    def run(*words: Any, status: int = 0) -> Any:
        capsys.readouterr()
        found = cli.main([*map(str, words), "--json"])
        out, err = capsys.readouterr()
        assert found == status, (found, out, err)
        return err if status else json.loads(out)

    return run


@pytest.fixture
def beside() -> Iterator[Callable[..., Command]]:
    """Run ``jupyter timetravel …`` in a process of its own, beside the test."""
    started: list[Command] = []

    def run(*words: Any, fault: str = "") -> Command:
        started.append(Command(words, fault))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def ran(notebook: Notebook, *codes: str) -> None:
    """Run cells; each one's checkpoint is made before the next begins, and before this returns."""
    for code in codes:
        notebook.run(code)
        notebook.head()
