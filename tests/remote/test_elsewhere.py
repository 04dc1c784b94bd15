"""Through another machine, and back: the end of case remote-07, and case remote-05."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Notebook
from tests.exchange.conftest import end, write_notebook
from tests.remote.conftest import Command, Remote
from tests.remote.test_story import on, tt, written

__all__ = ["tt"]
Start = Callable[..., Notebook]


def checkpoint(kernel: Notebook, label: str) -> None:
    """Make one and wait until its variables are on the disk."""
    kernel.run(f"%checkpoint --label {label}")
    written(kernel, kernel.head()["number"])


def notes(kernel: Notebook, label: str) -> dict[str, str]:
    """What is noted on the variables of a checkpoint."""
    (record,) = [c for c in kernel.command("list")["checkpoints"] if c["label"] == label]
    (capture,) = [c for c in record["captures"] if c["engine"] == "dill"]
    return {note["subject"]: note["detail"] for note in capture["not_captured"]}


def test_pushing_back_loses_nothing(
    start_notebook: Start, directory: Remote, tt: Command, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    module = packages / "onlyona.py"
    module.write_text("class Q:\n    def __init__(self, n):\n        self.n = n\n")
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    kernel = on(start_notebook, path)
    kernel.run(f"import sys; sys.path.append({str(packages)!r})")
    kernel.run("import onlyona; a = 1; q = onlyona.Q(7); both = {'q': q, 'n': 5}; other = [q]")
    kernel.run("class Mine(onlyona.Q):\n    k = 3\nmine = Mine(8)")
    checkpoint(kernel, "C1")
    end(kernel)
    tt("push", directory.url, path)
    module.rename(tmp_path / "kept")
    shutil.rmtree(packages / "__pycache__", ignore_errors=True)

    path, store = tmp_path / "B" / "b.ipynb", tmp_path / "store of B"
    write_notebook(path)
    tt("pull", directory.url, "--as", path, store=store)
    env = {"JPY_SESSION_NAME": str(path), "JUPYTER_TIMETRAVEL_STORE": str(store)}
    kernel = start_notebook(cwd=path.parent, env=env)
    kernel.run("%restore C1 --partial")
    kernel.run("both = 'of B'; b = 2")
    checkpoint(kernel, "C2")
    found = notes(kernel, "C2")
    assert set(found) == {"onlyona", "q", "other", "Mine", "mine"}
    assert all("not loaded" in why and "onlyona" in why for why in found.values()), found
    kernel.run("b = 3; other = 'of B'")
    kernel.run("%restore C2")  # the process itself: it held other, and holds it again
    assert kernel.run("print(b, 'other' in dir())").out == "2 False"
    (number,) = [c["number"] for c in kernel.command("list")["checkpoints"] if c["label"] == "C2"]
    written(kernel, number, "image")
    end(kernel)
    no_images = "--Supervisor.images=False"
    kernel = start_notebook(no_images, cwd=path.parent, env=env)
    kernel.run("%restore C2")  # its image
    kernel.run("c = 4; mine = 'of B'")
    checkpoint(kernel, "C3")
    assert set(notes(kernel, "C3")) == {"onlyona", "q", "other", "Mine"}
    end(kernel)
    kernel = start_notebook(no_images, cwd=path.parent, env=env)
    told = kernel.run("%restore C3").text()  # its variables: whole, as it had no q
    assert "not brought back: q" in told and "--partial" not in told
    kernel.run("del mine")
    checkpoint(kernel, "C4")
    assert set(notes(kernel, "C4")) == {"onlyona", "q", "other", "Mine"}
    end(kernel)
    tt("check", store=store)
    tt("push", directory.url, path, store=store)

    (tmp_path / "kept").rename(module)
    path, store = tmp_path / "A again" / "a.ipynb", tmp_path / "another store of A"
    write_notebook(path)
    tt("pull", directory.url, "b.ipynb", "--as", path, store=store)
    env = {"JPY_SESSION_NAME": str(path), "JUPYTER_TIMETRAVEL_STORE": str(store)}
    kernel = start_notebook(cwd=path.parent, env=env)
    told = kernel.run("%restore C4").text()
    assert "loaded now, after checkpoints that only held it: q" in told
    assert kernel.run("print(q.n, other[0] is q, onlyona.Q is type(q))").out == "7 True True"
    assert kernel.run("print(a, both, b, c, Mine.k, 'mine' in dir())").out == "1 of B 2 4 3 False"
    checkpoint(kernel, "C5")
    assert not notes(kernel, "C5")


def test_the_clock_goes_on_elsewhere(
    start_notebook: Start,
    directory: Remote,
    tt: Command,
    tmp_path: Path,
    later: tuple[str, ...],
) -> None:
    """Case remote-05, on a machine that has been up for a shorter time; variables alone."""
    path = tmp_path / "A" / "a.ipynb"
    write_notebook(path)
    kernel = start_notebook(cwd=path.parent, env={"JPY_SESSION_NAME": str(path)}, prefix=later)
    kernel.run("import time; t0 = time.monotonic()")
    checkpoint(kernel, "C1")
    end(kernel)
    tt("push", directory.url, path)
    path, store = tmp_path / "B" / "b.ipynb", tmp_path / "store of B"
    write_notebook(path)
    tt("pull", directory.url, "--as", path, store=store)
    env = {"JPY_SESSION_NAME": str(path), "JUPYTER_TIMETRAVEL_STORE": str(store)}
    kernel = start_notebook(cwd=path.parent, env=env)
    assert "a fresh one has the variables" in kernel.run("%restore C1").text()
    assert kernel.run("print(0 < time.monotonic() - t0 < 90_000)").out == "True"
