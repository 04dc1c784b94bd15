"""A clean notebook: the cells that led here, and whether they do so in a stock kernel."""

from __future__ import annotations

import os
import stat

import nbformat
import pytest

from jupyter_timetravel.cli import main


def sources(path):
    """The sources of a valid notebook's cells."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    return [cell.source for cell in notebook.cells]


def test_undone_branches_and_time_travel_are_left_out_and_the_values_are_the_same(notebook):
    notebook.cells("x = [1]", "x.append('wrong')", "%restore 1", "x.append(2)\n%checkpoint two")
    notebook.run("print('%restore')\ntext = '''\n%restore 1\n'''")
    notebook.run("1 / 0", ok=False)
    notebook.run("%%transaction\ny = sum(x)")
    notebook.run("z = 3\n%restore -1")
    out = notebook.run("%timetravel export clean.ipynb --check").out
    assert out.startswith("wrote clean.ipynb: 5 cells\nchecked in a stock kernel: 3 variables, as")
    assert sources(notebook.cwd / "clean.ipynb") == [
        "x = [1]",
        "x.append(2)",
        "print('%restore')\ntext = '''\n%restore 1\n'''",
        "1 / 0",
        "y = sum(x)",
    ]


def test_what_differs_is_named(notebook):
    notebook.cells("import time", "t = time.time_ns()", "import os\npid = os.getpid()", "same = 1")
    out = notebook.run("%timetravel export clean.ipynb --check").out
    assert "2 variables differ" in out and "  t: here int" in out and "same" not in out


def test_a_cell_that_fails_there_is_named_and_the_file_stays(notebook):
    notebook.run("x = get_ipython()")
    notebook.run("x.kernel.timetravel and 1")
    cell = notebook.run("%timetravel export clean.ipynb --check", ok=False)
    assert cell.reply["ename"] == "CleanExportRefused"
    assert "was written, but not checked: its cell 2 fails: AttributeError" in cell.reply["evalue"]
    assert len(sources(notebook.cwd / "clean.ipynb")) == 2


def test_nothing_is_overwritten_without_force(notebook):
    notebook.run("x = 1")
    target = notebook.cwd / "a.ipynb"
    target.write_text("mine")
    cell = notebook.run("%timetravel export a.ipynb", ok=False)
    assert "exists. Nothing was written" in cell.reply["evalue"]
    assert target.read_text() == "mine"
    notebook.run("%timetravel export a.ipynb --force")
    assert sources(target) == ["x = 1"]
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o666 & ~_umask()
    for name in ("nowhere/a.ipynb", "a.py"):
        cell = notebook.run(f"%timetravel export {name}", ok=False)
        assert cell.reply["ename"] == "CleanExportRefused"


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_fresh_process_begins_anew(notebook):
    cell = notebook.run("%timetravel export a.ipynb", ok=False)
    assert "No cell has led" in cell.reply["evalue"]
    notebook.cells("x = 1", "exit")
    notebook.run("y = 2")
    notebook.run("%timetravel export a.ipynb")
    assert sources(notebook.cwd / "a.ipynb") == ["y = 2"]


def test_the_command_line_writes_it_of_a_kernel_that_is_gone(
    start_notebook, tmp_path, capsys, monkeypatch
):
    document = tmp_path / "work" / "a.ipynb"
    document.parent.mkdir()
    document.write_text("{}")
    notebook = start_notebook(env={"JPY_SESSION_NAME": str(document)})
    notebook.cells("x = 1", "y = [x, 2]", "z = 3")
    notebook.head()
    notebook.manager.shutdown_kernel()
    monkeypatch.chdir(tmp_path)
    assert main(["export-notebook", str(document), "out.ipynb", "--check"]) == 0
    assert "3 variables, as far as is seen as here" in capsys.readouterr().out
    assert main(["export-notebook", str(document), "out.ipynb"]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["export-notebook", str(document), "2.ipynb", "--checkpoint", "2"]) == 0
    assert sources(tmp_path / "2.ipynb") == ["x = 1", "y = [x, 2]"]


def test_without_nbclient_it_is_said_what_to_install(notebook):
    notebook.run("import os, sys\nx = 1")
    (notebook.cwd / "nbclient.py").write_text("raise ImportError('not here')")
    notebook.run("os.environ['PYTHONPATH'] = os.getcwd() + ':' + os.environ['PYTHONPATH']")
    cell = notebook.run("%timetravel export a.ipynb --check", ok=False)
    assert "pip install nbclient nbformat" in cell.reply["evalue"]


@pytest.mark.parametrize("id", ["good-id", "", "no blanks"])
def test_cell_ids_are_kept_where_they_are_valid(notebook, id):
    message = notebook.client.session.msg(
        "execute_request",
        {"code": "x = 1", "silent": False, "store_history": True, "stop_on_error": True},
        metadata={"cellId": id},
    )
    notebook.client.shell_channel.send(message)
    notebook.wait(message["header"]["msg_id"])
    notebook.run("%timetravel export a.ipynb")
    (cell,) = nbformat.read(notebook.cwd / "a.ipynb", as_version=4).cells
    assert (cell.id == id) == (id == "good-id")
