"""A cell breaks what the next Python needs: the kernel stays, says what is broken, goes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ipykernel
import pytest
import traitlets
from environment_tools import make_venv, site_packages

from jupyter_timetravel import cli

BREAK = (
    "import pathlib, traitlets, ipykernel\n"
    "for m in (traitlets, ipykernel):\n"
    "    pathlib.Path(m.__file__).write_text(\"raise ImportError('broken by install')\\n\")"
)


@pytest.fixture
def python(home: Path) -> Path:
    """An interpreter of an environment of the user's own, with an ipykernel of its own."""
    made = make_venv(home / "venv")
    for module in (traitlets, ipykernel):
        source = Path(module.__file__).parent
        shutil.copytree(source, site_packages(home / "venv") / source.name)
    return made


@pytest.fixture
def broken(start: Any, work: Path, python: Path) -> Any:
    """A kernel that runs, and whose Python would not start again."""
    # listed: where servers put it, and the command line finds it
    notebook = start("--python", str(python), cwd=work, env=session(work), listed=True)
    notebook.run("%checkpoint works")
    notebook.run("open('w.txt', 'w').write('kept'); x = 1")
    notebook.run(BREAK)
    return notebook


def session(work: Path) -> dict[str, str]:
    return {"JPY_SESSION_NAME": str(work / "n.ipynb")}


def restart(notebook: Any) -> None:
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=60)


def ask(notebook: Any, msg_type: str, **content: Any) -> dict[str, Any]:
    """A request on the shell channel; the content of its reply."""
    message = notebook.client.session.msg(msg_type, content)
    notebook.client.shell_channel.send(message)
    while True:
        reply = notebook.client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            found: dict[str, Any] = reply["content"]
            return found


def test_a_restart_says_what_is_broken_and_goes_back(broken: Any, python: Path) -> None:
    restart(broken)
    cell = broken.run("print(1)", ok=False)
    assert cell.error.startswith("KernelBroken: ")
    assert "ImportError: broken by install" in cell.error
    assert "site-packages/ipykernel/__init__.py, line 1" in cell.error
    assert "`%restore 2`" in cell.error  # the newest before it was broken
    assert ask(broken, "is_complete_request", code="x = (")["status"] == "complete"
    assert ask(broken, "complete_request", code="x", cursor_pos=1)["matches"] == []
    assert ask(broken, "history_request", hist_access_type="tail", n=9)["history"] == []
    assert ask(broken, "comm_info_request")["comms"] == {}
    assert ask(broken, "kernel_info_request")["language_info"]["name"] == "python"
    assert "works" in broken.run("%timeline").out
    assert "broken by install" in broken.run("%timetravel status").out
    text = broken.run("%restore works").out
    assert "Python runs again" in text
    check = broken.run("import traitlets, ipykernel, os\nprint(traitlets.__file__, os.listdir())")
    assert str(python.parents[1]) in check.out
    assert "w.txt" not in check.out
    with pytest.raises(AssertionError, match="NameError"):
        broken.run("x")
    for module in (traitlets, ipykernel):
        path = site_packages(python.parents[1]) / Path(module.__file__).parent.name / "__init__.py"
        assert "broken by install" not in path.read_text()  # the host's own was never harmed


def test_in_the_running_kernel_it_goes_back_as_always(broken: Any) -> None:
    broken.run("%restore 2")
    assert broken.run("import traitlets.log, ipykernel.embed; x").result == "1"
    restart(broken)
    assert broken.run("1 + 1").result == "2"


def test_reset_and_its_undoing(broken: Any) -> None:
    restart(broken)
    text = broken.run("%timetravel reset").out
    assert "Python runs again" in text
    assert broken.run("open('w.txt').read()").result == "'kept'"  # the workspace stays
    safety = text.rpartition("%restore ")[2].split()[0]
    broken.run(f"%restore {safety} --only files")
    restart(broken)
    assert "broken by install" in broken.run("1", ok=False).error


def test_a_restore_that_does_not_mend_says_so(broken: Any) -> None:
    broken.run("open('more.txt', 'w').close()")
    restart(broken)
    number = broken.command("status")["head"]["number"]
    error = broken.run(f"%restore {number}", ok=False).error
    assert error.startswith("RestoreFailed: ")
    assert "broken by install" in error
    assert broken.run("%restore 2").status == "ok"
    assert broken.run("1").result == "1"


def test_clients_of_the_protocol_can_go_back_too(broken: Any) -> None:
    restart(broken)
    assert any("broken by install" in text for text in broken.command("status")["limits"])
    assert [c["number"] for c in broken.command("list")["checkpoints"]][:3] == [0, 1, 2]
    result = broken.command("restore", checkpoint=2)
    assert result["checkpoint"]["number"] == 2
    assert broken.run("1").result == "1"
    assert not any("broken" in text for text in broken.command("status")["limits"])


def test_the_command_line_while_it_runs(
    broken: Any, work: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another terminal lists and restores; the kernel that was restarted is not shut down."""
    restart(broken)
    assert "broken by install" in broken.run("1", ok=False).error
    notebook = str(work / "n.ipynb")
    connection = broken.manager.connection_file

    def command(*words: str) -> str:
        capsys.readouterr()
        status = cli.main([*words])
        out, err = capsys.readouterr()
        assert status == 0, out + err
        return out

    assert "works" in command("list", notebook)
    assert json.loads(command("list", connection, "--json"))["running"]
    assert "broken by install" in command("status", notebook)
    assert "w.txt" in command("restore", notebook, "works", "--dry-run")
    assert (work / "w.txt").read_text() == "kept"
    assert "Python runs again" in command("restore", notebook, "works")
    assert not (work / "w.txt").exists()
    assert broken.run("import traitlets; 1 + 1").result == "2"
    assert "Python runs again" not in command("restore", notebook, "--undo", "--only", "files")
    assert (work / "w.txt").read_text() == "kept"


def test_a_deleted_interpreter_and_run_all(broken: Any) -> None:
    broken.run("import sys, os; os.unlink(sys.executable)")
    restart(broken)
    first, second = broken.send("print(1)"), broken.send("print(2)")
    assert "No such file or directory" in broken.wait(first).error
    cell = broken.wait(second)  # aborted if it was there when the first one failed
    assert cell.status in ("aborted", "error") and not cell.out
    broken.run("%restore -3")
    assert broken.run("x = 2; x").result == "2"


def test_exit_in_a_cell_comes_back_with_its_memory(broken: Any) -> None:
    broken.run("exit()")
    assert "broken by install" in broken.run("x", ok=False).error
    text = broken.run("%restore 2").out
    assert "memory and files" in text
    assert broken.run("import traitlets; x").result == "1"


def test_a_death_when_a_fresh_process_is_wanted(broken: Any) -> None:
    broken.run("%timetravel config on_death=restart")
    cell = broken.run("import os; os._exit(3)", ok=False)
    assert "ExecutorDied" in cell.error
    assert "broken by install" in cell.error
    broken.run("%restore 2")
    assert broken.run("x").result == "1"


def test_a_kernel_that_never_worked_does_not_start(start_notebook: Any, home: Path) -> None:
    made = make_venv(home / "venv")
    package = site_packages(home / "venv") / "traitlets"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('never worked')\n")
    with pytest.raises(RuntimeError):
        start_notebook("--python", str(made), env={"HOME": str(home)})


def test_an_interpreter_in_the_workspace(start_notebook: Any, home: Path, work: Path) -> None:
    python = make_venv(work / ".venv")
    shutil.copytree(Path(traitlets.__file__).parent, site_packages(work / ".venv") / "traitlets")
    env = {"HOME": str(home), **session(work)}
    notebook = start_notebook("--python", str(python), cwd=work, env=env)
    notebook.run("x = 1")
    notebook.run("import traitlets, pathlib\npathlib.Path(traitlets.__file__).write_text('1 +')")
    notebook.run("y = 1")
    notebook.head()
    restart(notebook)
    error = notebook.run("1", ok=False).error
    assert "SyntaxError" in error
    assert "`%restore 1`" in error
    notebook.run("%restore 1")
    assert notebook.run("import traitlets; 1").result == "1"
