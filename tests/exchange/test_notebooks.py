"""Case store-10: a notebook that is renamed, moved, copied or replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.exchange.conftest import call, end, write_notebook
from tests.kernel.durable_world import durable

Start = Callable[..., Any]


@pytest.fixture
def a(on: Start, tmp_path: Path) -> Path:
    """P/a.ipynb with checkpoint "A" (x = 1, file f = "a"), and what came after; no kernel runs."""
    path = tmp_path / "P" / "a.ipynb"
    write_notebook(path, "x = 1", "y = 2", "z = 3")
    notebook = on(path)
    notebook.run("x = 1; open('f', 'w').write('a')")
    notebook.run("%checkpoint A")
    durable(notebook, notebook.head()["number"])
    notebook.run("x = 2; open('f', 'w').write('later')")
    end(notebook)
    return path


def goes_back(notebook: Any, directory: Path) -> None:
    """The files of A come back there, and its variables from the disk."""
    notebook.run("%restore A")
    assert (directory / "f").read_text() == "a"
    assert notebook.run("x").result == "1"


def tree(top: Path) -> dict[str, bytes]:
    """What is in a directory."""
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def comments(notebook: Any) -> list[str]:
    return [c["comment"] for c in notebook.command("list")["checkpoints"]]


def test_renamed(a: Path, on: Start) -> None:
    b = a.rename(a.with_name("b.ipynb"))
    notebook = on(b)
    assert "goes on here" in notebook.run("1").text("stderr")
    goes_back(notebook, a.parent)
    assert not a.exists(), "the notebook must not be there twice"


def test_copied_beside_it(a: Path, on: Start, tmp_path: Path) -> None:
    c = a.with_name("c.ipynb")
    shutil.copy(a, c)
    notebook = on(c)
    assert "looks like a copy of" in notebook.run("1").text("stderr")
    assert comments(notebook)[0] == f"copied from {a} at #3"
    assert "A" not in comments(notebook)
    listed = call("list", a, store=tmp_path / "store")
    assert '"A"' in listed


def test_the_directory_copied(a: Path, on: Start, tmp_path: Path) -> None:
    Q = tmp_path / "Q"
    shutil.copytree(a.parent, Q)
    before = tree(a.parent)
    notebook = on(Q / "a.ipynb")
    assert "A" not in comments(notebook)
    notebook.run("%checkpoint B")
    notebook.run("open('f', 'w').write('Q')")
    notebook.run("%restore B --only files")
    assert (Q / "f").read_text() == "later"
    assert tree(a.parent) == before


def test_an_empty_one_with_the_old_name(a: Path, on: Start) -> None:
    a.unlink()
    write_notebook(a)
    notebook = on(a)
    assert "was set aside" in notebook.run("1").text("stderr")
    assert "A" not in comments(notebook)


def test_another_one_with_the_old_name(a: Path, on: Start, tmp_path: Path) -> None:
    a.unlink()
    write_notebook(a, "other")
    notebook = on(a)
    told = notebook.run("1").text("stderr")
    assert "was set aside" in told
    assert "A" not in comments(notebook)
    refused = notebook.run("%restore A", ok=False)
    assert "no checkpoint" in refused.error
    end(notebook)
    # the old history is there on request
    id = told.partition("adopt ")[2].split()[0]
    store = tmp_path / "store"
    assert '"A"' in call("list", id, store=store)
    assert "another notebook" in call("sessions", store=store)
    assert call("prune", "--older-than", "52w", store=store)
    assert '"A"' in call("list", id, store=store)
    call("adopt", id, a, store=store)
    notebook = on(a)
    goes_back(notebook, a.parent)


def test_another_version_checked_out(a: Path, on: Start) -> None:
    text = a.read_text()
    a.unlink()
    a.write_text(text.replace("y = 2", "y = 22").replace("z = 3", "z = 33"))
    notebook = on(a)
    told = notebook.run("1").text("stderr")
    assert "set aside" not in told and "goes on here" not in told
    goes_back(notebook, a.parent)
    end(notebook)
    # a branch in which it is another notebook altogether, and back
    mine = a.read_text()
    a.unlink()
    write_notebook(a, "entirely", "different")
    notebook = on(a)
    assert "A" not in comments(notebook)
    end(notebook)
    a.unlink()
    a.write_text(mine)
    notebook = on(a)
    assert "goes on" in notebook.run("1").text("stderr")
    assert "A" in comments(notebook)


def test_the_directory_renamed(a: Path, on: Start, tmp_path: Path) -> None:
    P2 = a.parent.rename(tmp_path / "P2")
    store = tmp_path / "store"
    # from the shell, before any kernel has seen it there
    call("restore", P2 / "a.ipynb", "A", store=store)
    assert (P2 / "f").read_text() == "a"
    assert not a.parent.exists()
    a.parent.mkdir()  # what is there by now is something else
    (a.parent / "f").write_text("other")
    (P2 / "f").write_text("again")
    goes_back(on(P2 / "a.ipynb"), P2)
    assert tree(a.parent) == {"f": b"other"}


def test_through_a_symlink(a: Path, on: Start, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(a.parent)
    notebook = on(link / "a.ipynb")
    told = notebook.run("1").text("stderr")
    assert "set aside" not in told and "goes on here" not in told
    goes_back(notebook, a.parent)


def test_the_notebook_alone_moved_to_another_project(a: Path, on: Start, tmp_path: Path) -> None:
    Q = tmp_path / "Q"
    Q.mkdir()
    (Q / "f").write_text("Q's own")
    before = tree(a.parent)
    del before["a.ipynb"]
    moved = a.rename(Q / "a.ipynb")
    store = tmp_path / "store"
    assert "still there" in call("restore", moved, "A", store=store, status=1)
    notebook = on(moved)
    assert "A" in comments(notebook)
    refused = notebook.run("%restore A --only files", ok=False)
    assert "still there" in refused.error
    assert (Q / "f").read_text() == "Q's own"
    assert tree(a.parent) == before


def test_renamed_while_the_kernel_runs(on: Start, tmp_path: Path) -> None:
    path = tmp_path / "P" / "a.ipynb"
    write_notebook(path, "x = 1")
    notebook = on(path)
    notebook.run("x = 1; open('f', 'w').write('a')")
    notebook.run("%checkpoint A")
    durable(notebook, notebook.head()["number"])
    P2 = path.parent.rename(tmp_path / "P2")
    renamed = (P2 / "a.ipynb").rename(P2 / "b.ipynb")
    notebook.run("x = 2; open('f', 'w').write('b')")
    notebook.run("%checkpoint B")
    end(notebook)
    store = tmp_path / "store"
    assert '"B"' in call("list", renamed, store=store)
    # a restart keeps the name that the server gave at first
    again = on(path, cwd=P2)
    assert "B" in comments(again)
    goes_back(again, P2)
    assert not (P2 / "a.ipynb").exists()
    assert not path.parent.exists()


def test_nothing_is_written_into_a_notebook(a: Path, on: Start) -> None:
    before, made = a.read_bytes(), os.stat(a)
    end(on(a))
    assert a.read_bytes() == before
    assert os.stat(a).st_mtime_ns == made.st_mtime_ns
