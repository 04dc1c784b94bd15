"""Whole stories with real kernels: cases remote-01, remote-02 and remote-07."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Notebook, open_up
from tests.exchange.conftest import call, end, write_notebook
from tests.remote.conftest import Command, Remote

Start = Callable[..., Notebook]


@pytest.fixture
def tt(tmp_path: Path) -> Command:
    """The command line of the test's user."""

    def run(*words: Any, **more: Any) -> str:
        more.setdefault("store", tmp_path / "store")
        return call(*words, **{"JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "keys"), **more})

    return run


def on(start: Start, path: Path, *arguments: str) -> Notebook:
    """A kernel for a notebook, as a server starts it."""
    return start(*arguments, cwd=path.parent, env={"JPY_SESSION_NAME": str(path)})


def written(notebook: Notebook, number: int, engine: str = "dill") -> None:
    """Wait until a checkpoint's capture is on the disk."""
    end = time.monotonic() + PATIENCE
    while True:
        (record,) = [c for c in notebook.command("list")["checkpoints"] if c["number"] == number]
        states = {c["engine"]: c["state"] for c in record["captures"]}
        if states.get(engine) == "ready":
            return
        assert time.monotonic() < end, states
        time.sleep(0.1)


def test_push_lose_everything_pull_and_resume(
    start_notebook: Start, remote: Remote, tt: Command, tmp_path: Path
) -> None:
    path = tmp_path / "P" / "a.ipynb"
    write_notebook(path, "x = 1")
    kernel = on(start_notebook, path)
    kernel.run("import json; x = {'a': [1, 2, 3]}; open('f', 'w').write('mine')")
    kernel.run("def f(n):\n    return n + len(x['a'])")
    kernel.run("%checkpoint --label end")
    number = kernel.head()["number"]
    written(kernel, number)
    end(kernel)
    tt("push", remote.url, path, **remote.env)

    open_up(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    shutil.rmtree(path.parent)

    path = tmp_path / "elsewhere" / "b.ipynb"
    write_notebook(path)
    assert "restorable here" in tt("pull", remote.url, "--check", **remote.env)
    tt("pull", remote.url, "--as", path, **remote.env)
    cells = [one for one in _exported(tt, path, tmp_path) if "def f" in one]
    assert cells, "the cells came along"
    tt("restore", path, "end")
    assert (path.parent / "f").read_text() == "mine"
    kernel = on(start_notebook, path)
    kernel.run("%restore end")
    assert kernel.run("print(f(1), x, json.dumps(x))").out == "4 {'a': [1, 2, 3]} " + json.dumps(
        {"a": [1, 2, 3]}
    )


def _exported(tt: Command, path: Path, tmp_path: Path) -> list[str]:
    target = tmp_path / "clean.ipynb"
    tt("export-notebook", path, target)
    return ["".join(cell["source"]) for cell in json.loads(target.read_text())["cells"]]
