"""The workspace through a real kernel; the engine's own suite is tests/workspace."""

from __future__ import annotations

import os

import nbformat


def test_02_ignored_and_untracked_results(notebook):
    notebook.run(
        "from pathlib import Path\n"
        'Path(".gitignore").write_text("output/\\n*.npy\\n")\n'
        'Path("output").mkdir(); Path("output/run1.jsonl").write_text("r1\\n")\n'
        'Path("w.npy").write_bytes(b"\\x93NUMPY-A")\n'
        '%checkpoint "have results"'
    )
    notebook.run(
        'Path("output/run1.jsonl").write_text("spoilt\\n")\n'
        'Path("output/run2.jsonl").write_text("r2\\n")\n'
        'Path(".gitignore").write_text(""); Path("w.npy").unlink()'
    )
    notebook.run('%restore "have results"')
    work = notebook.cwd
    assert (work / "output/run1.jsonl").read_text() == "r1\n"
    assert (work / "w.npy").read_bytes() == b"\x93NUMPY-A"
    assert (work / ".gitignore").read_text() == "output/\n*.npy\n"
    assert not (work / "output/run2.jsonl").exists()
    safety = [c for c in notebook.command("list")["checkpoints"] if c["reason"] == "safety"][-1]
    notebook.run(f"%restore {safety['number']}")
    assert (work / "output/run2.jsonl").read_text() == "r2\n"
    assert (work / "output/run1.jsonl").read_text() == "spoilt\n"


def test_07_a_symlink_in_the_place_of_a_directory(notebook, tmp_path):
    notebook.run(
        'import os\nos.makedirs("data/sub"); open("data/sub/a.txt", "w").write("inside")\n'
        'open("c.ini", "w").write("cfg=1")'
    )
    notebook.head()
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "sub/a.txt").write_text("precious")
    os.rename(notebook.cwd / "data", tmp_path / "moved")
    os.symlink(victim, notebook.cwd / "data")
    notebook.run("%restore 1")
    assert (victim / "sub/a.txt").read_text() == "precious"
    assert not os.path.islink(notebook.cwd / "data")
    assert (notebook.cwd / "data/sub/a.txt").read_text() == "inside"
    assert (tmp_path / "moved/sub/a.txt").read_text() == "inside"


def test_13_the_notebook_itself_is_not_rolled_back(start_notebook, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for name in ("t.ipynb", "other.ipynb"):
        nbformat.write(nbformat.v4.new_notebook(), work / name)
    notebook = start_notebook(cwd=work, env={"JPY_SESSION_NAME": str(work / "t.ipynb")})
    notebook.run("a = 1")
    notebook.head()
    early = (work / "other.ipynb").read_text()
    for name in ("t.ipynb", "other.ipynb"):
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("b = 2")])
        nbformat.write(nb, work / name)
    notebook.run("b = 2")
    notebook.head()
    files = notebook.command("restore", checkpoint=1, dry_run=True)["files"]
    assert [one["path"] for one in files] == ["other.ipynb"]
    notebook.run("%restore 1")
    assert notebook.run("'b' in dir()").result == "False"
    assert "b = 2" in (work / "t.ipynb").read_text()
    assert (work / "other.ipynb").read_text() == early


def test_notebooks_that_were_deleted_come_back(notebook):
    nbformat.write(nbformat.v4.new_notebook(), notebook.cwd / "mine.ipynb")
    (notebook.cwd / "sub").mkdir()
    nbformat.write(nbformat.v4.new_notebook(), notebook.cwd / "sub" / "other.ipynb")
    (notebook.cwd / "a.py").write_text("1")
    notebook.run("x = 1")
    notebook.head()
    before = (notebook.cwd / "mine.ipynb").read_bytes()
    notebook.run("!rm -rf *")
    report = notebook.run("%restore 1").out
    assert (notebook.cwd / "mine.ipynb").read_bytes() == before
    assert (notebook.cwd / "sub" / "other.ipynb").exists() and "mine.ipynb" in report
    notebook.head()
    (notebook.cwd / "mine.ipynb").write_text("EDIT")
    report = notebook.run("%restore 1").out
    assert (notebook.cwd / "mine.ipynb").read_text() == "EDIT" and "mine.ipynb" not in report


def test_what_someone_else_wrote_since_is_kept(notebook):
    notebook.run("open('f', 'w').write('1')")
    notebook.run("x = 1")
    notebook.head()
    (notebook.cwd / "f").write_text("by another program")
    (notebook.cwd / "theirs").write_text("new")
    result = notebook.command("restore", checkpoint=1)
    assert (notebook.cwd / "f").read_text() == "1"
    notebook.command("restore", checkpoint=result["safety"]["number"])
    assert (notebook.cwd / "f").read_text() == "by another program"
    assert (notebook.cwd / "theirs").read_text() == "new"


def test_the_timeline_of_a_notebook_survives_a_restart(start_notebook, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "t.ipynb")
    env = {"JPY_SESSION_NAME": str(work / "t.ipynb")}
    notebook = start_notebook("--Supervisor.durability=manual", cwd=work, env=env)
    notebook.run("open('f', 'w').write('1')")
    notebook.run("open('f', 'w').write('2')")
    notebook.head()
    notebook.manager.shutdown_kernel()
    again = start_notebook("--Supervisor.durability=manual", cwd=work, env=env)
    again.head()
    records = again.command("list")["checkpoints"]
    assert [c["number"] for c in records] == [0, 1, 2, 3]
    refused = again.refused("restore", checkpoint=1)
    assert "--only files" in refused["evalue"]
    again.run("%restore 1 --only files")
    assert (work / "f").read_text() == "1"


def test_a_kernel_without_a_notebook_leaves_nothing_in_the_store(start_notebook, tmp_path):
    notebook = start_notebook()
    notebook.run("open('f', 'wb').write(b'x' * 1_000_000)")
    notebook.head()
    notebook.manager.shutdown_kernel()
    import sqlite3

    with sqlite3.connect(tmp_path / "store" / "timelines.sqlite") as db:
        assert db.execute("select count(*) from timelines").fetchone() == (0,)


def test_a_directory_that_is_too_large_is_said_to_be(start_notebook, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for i in range(30):
        (work / str(i)).write_text("x")
    notebook = start_notebook("--Supervisor.files_most=20", cwd=work)
    cell = notebook.run("x = 1")
    assert "Files are not captured" in cell.text("stderr")
    notebook.run("x = 2; open('0', 'w').write('y')")
    notebook.run("%restore 1")
    assert notebook.run("print(x, open('0').read())").out == "1 y"
