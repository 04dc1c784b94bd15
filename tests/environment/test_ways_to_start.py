"""However a kernel is started, it lives on: case sandbox-04."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import nbformat
import pytest

from tests.server.server_world import running


def started_by(program, work, tmp_path, home):
    """Run a program of Python's that starts the kernel "tt"; what it prints."""
    spec = tmp_path / "share/kernels/tt"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "language": "python", "display_name": "tt"})
    )
    done = subprocess.run(
        [sys.executable, *program], cwd=work, capture_output=True, text=True, timeout=150,
        env={**os.environ, "JUPYTER_PATH": str(tmp_path / "share"), "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "nbclient",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("papermill", "nbconvert")),
    ],
)
def test_04_lives_longer_than_its_parent_poller(start_notebook, home, tmp_path, how):
    """In ways to start it other than a server; start_notebook sets the directories up."""
    work = tmp_path / "work"
    work.mkdir()
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import time; time.sleep(11); print('alive')")],
        metadata={"kernelspec": {"name": "tt", "display_name": "tt", "language": "python"}},
    )
    nbformat.write(notebook, work / "in.ipynb")
    execute = (
        "import nbclient, nbformat\nbook = nbformat.read('in.ipynb', 4)\n"
        "nbclient.NotebookClient(book).execute()\nnbformat.write(book, 'out.ipynb')"
    )
    program = {
        "papermill": ["-m", "papermill", "in.ipynb", "out.ipynb", "-k", "tt"],
        "nbclient": ["-c", execute],
        "nbconvert": [
            *("-m", "jupyter", "nbconvert", "--to", "notebook", "--execute", "in.ipynb"),
            *("--output", "out.ipynb"),
        ],
    }[how]
    started_by(program, work, tmp_path, home)
    made = nbformat.read(work / "out.ipynb", 4)
    assert made.cells[0].outputs[0].text == "alive\n"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_04_lives_longer_than_its_parent_poller_in_jupyter_run(start_notebook, home, tmp_path):
    """It gives each file ten seconds of its own, so there are several."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "first.py").write_text("import time; born = time.monotonic()")
    (work / "more.py").write_text("time.sleep(2)")
    (work / "last.py").write_text("print('alive', time.monotonic() - born > 11)")
    files = ["first.py", *["more.py"] * 6, "last.py"]
    program = ["-m", "jupyter", "run", "--kernel=tt", *files]
    assert started_by(program, work, tmp_path, home) == "alive True\n"


@pytest.mark.slow
def test_04_lives_longer_than_its_parent_poller_in_a_server(tmp_path):
    (tmp_path / "server").mkdir()
    with running(tmp_path / "server") as server:
        kernel = server.start("n.ipynb")
        assert kernel.run("x = 1; import time; time.sleep(11); print('alive')") == "alive"
        assert kernel.run("print(x)") == "1"


def test_a_home_that_cannot_be_written(home, start_notebook):
    """As in containers that run as any user id."""
    theirs = home / "theirs"
    (theirs / ".ipython").mkdir(parents=True)
    (theirs / ".ipython").chmod(0o555)
    theirs.chmod(0o555)
    notebook = start_notebook(env={"HOME": str(theirs), "IPYTHONDIR": str(theirs / ".ipython")})
    notebook.run("x = 1\n%checkpoint one")
    notebook.run("x = 2")
    notebook.run("%restore one")
    assert notebook.run("print(x)").out == "1"
