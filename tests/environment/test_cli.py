"""The command line on sessions of real kernels that have ended, or run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipykernel
import pytest
import traitlets
from environment_tools import make_venv, site_packages

from jupyter_timetravel import cli
from jupyter_timetravel.offline import pruning
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.store.database import open_store
from tests.waiting import until

MARK = "def mark(text):\n    open(f'{E}/env.txt', 'w').write(text); open('w.txt', 'w').write(text)"


@pytest.fixture
def command(work: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run ``jupyter timetravel …``; NOTEBOOK stands for the notebook. Gives what it prints."""

    def run(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        given = [str(work / "n.ipynb") if word == "NOTEBOOK" else word for word in words]
        found = cli.main(given)
        out, err = capsys.readouterr()
        assert found == status, out + err
        assert "Traceback" not in err
        return err if status else out

    return run


@pytest.fixture
def session(start: Callable[..., Any], work: Path, E: Path) -> Iterator[Callable[..., Any]]:
    """Start a kernel for the notebook."""

    def begin(*arguments: str) -> Any:
        notebook = start(*arguments, cwd=work, env={"JPY_SESSION_NAME": str(work / "n.ipynb")})
        notebook.run(f"E = {str(E)!r}\n{MARK}", silent=True)
        return notebook

    yield begin


def end(notebook: Any) -> None:
    notebook.head()  # the checkpoint of the last cell is made
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel()


def stored(command: Callable[..., str], number: int) -> None:
    """Wait until a checkpoint is in the store, where it is written in the background."""
    until(lambda: f"#{number} " in command("list", "NOTEBOOK"))


def test_a_kernel_that_cannot_start_is_put_back(
    start: Callable[..., Any], work: Path, home: Path, command: Callable[..., str]
) -> None:
    python = make_venv(home / "venv")
    for module in (traitlets, ipykernel):
        source = Path(module.__file__).parent
        shutil.copytree(source, site_packages(home / "venv") / source.name)
    env = {"JPY_SESSION_NAME": str(work / "n.ipynb")}
    notebook = start("--python", str(python), cwd=work, env=env)
    notebook.run("%checkpoint works")
    notebook.run(
        "import pathlib, traitlets\n"
        "pathlib.Path(traitlets.__file__).write_text('raise ImportError(1)')"
    )
    end(notebook)
    assert "works" in command("list", "NOTEBOOK")
    told = command("restore", "NOTEBOOK", "works")
    assert "traitlets" in told
    again = start("--python", str(python), cwd=work, env=env)
    assert again.run("import traitlets; 1 + 1").result == "2"


def test_list_and_sessions(
    session: Callable[..., Any], command: Callable[..., str], work: Path
) -> None:
    notebook = session()
    notebook.run("mark('one')")
    notebook.run("%checkpoint --label L")
    notebook.run("mark('two')")
    number = notebook.head()["number"]
    for running in (True, False):
        stored(command, number)
        assert "[L]" in command("list", "NOTEBOOK")
        listing = json.loads(command("list", "NOTEBOOK", "--json"))
        assert [c["number"] for c in listing["checkpoints"]] == list(range(number + 1))
        [row] = json.loads(command("sessions", "--json"))["sessions"]
        assert row["notebook"] == str(work / "n.ipynb")
        assert row["in_use"] is running
        assert row["environment_bytes"] > 0
        assert ("in use" in command("sessions")) is running
        if running:
            end(notebook)
    assert command("list", row["id"][:12]) == command("list", "NOTEBOOK")


def test_diff_tells_packages_and_files(
    session: Callable[..., Any], command: Callable[..., str], E: Path
) -> None:
    notebook = session()
    notebook.run("mark('one'); x = 1")
    notebook.run(
        "import os; d = f'{E}/foo-1.2.dist-info'; os.mkdir(d)\n"
        "open(d + '/METADATA', 'w').write('Metadata-Version: 2.1\\nName: foo\\nVersion: 1.2\\n')"
    )
    notebook.run("mark('three'); x = 3")
    end(notebook)
    text = command("diff", "NOTEBOOK", "1", "3")
    for expected in ("foo 1.2", "env.txt", "w.txt", "x  1"):
        assert expected in text.replace("int ", ""), text
    found = json.loads(command("diff", "NOTEBOOK", "1", "3", "--json"))
    assert [p["name"] for p in found["packages"]] == ["foo"]
    assert {c["path"] for c in found["files"]} == {"w.txt"}
    now = json.loads(command("diff", "NOTEBOOK", "1", "--json"))
    assert [p["name"] for p in now["packages"]] == ["foo"]
    assert now["files"] == found["files"]


def test_restore_and_its_undoing(
    session: Callable[..., Any], command: Callable[..., str], work: Path, E: Path
) -> None:
    notebook = session()
    notebook.run("mark('one')")
    notebook.run("mark('two')")
    end(notebook)
    assert "w.txt" in command("restore", "NOTEBOOK", "1", "--dry-run")
    assert (work / "w.txt").read_text() == "two"
    told = command("restore", "NOTEBOOK", "1")
    assert (work / "w.txt").read_text() == "one"
    safety = told.rpartition("#")[2].split()[0]
    assert "already" in command("restore", "NOTEBOOK", "1")
    second = session()
    assert second.run("open(f'{E}/env.txt').read(), open('w.txt').read()").result == (
        "('one', 'one')"
    )
    # memory too: it was written when the kernel before was shut down
    assert second.command("status")["head"]["number"] == 1
    error = command("restore", "NOTEBOOK", safety, status=1)
    assert "A kernel runs on" in error
    assert "shut it down" in error
    second.run("mark('unsaved')")
    end(second)
    command("restore", "NOTEBOOK", safety)
    third = session()
    assert third.run("open(f'{E}/env.txt').read(), open('w.txt').read()").result == (
        "('two', 'two')"
    )
    assert not (E / "env.txt").exists()  # the host's own


def test_restore_after_a_kill_keeps_what_was_being_written(
    session: Callable[..., Any], command: Callable[..., str]
) -> None:
    notebook = session()
    notebook.run("mark('one')")
    notebook.run("%timetravel config auto=off")
    notebook.run("mark('never in a checkpoint')")
    stored(command, 1)
    os.kill(notebook.pid, signal.SIGKILL)
    until(lambda: not notebook.manager.is_alive())
    told = command("restore", "NOTEBOOK", "1")
    command("restore", "NOTEBOOK", told.rpartition("#")[2].split()[0])
    again = session()
    assert again.run("open(f'{E}/env.txt').read()").result == "'never in a checkpoint'"


def test_a_restore_that_fails_half_way_can_be_done_again(
    session: Callable[..., Any],
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    work: Path,
) -> None:
    notebook = session()
    notebook.run("mark('one')")
    notebook.run("mark('two')")
    end(notebook)

    def broken(*args: Any, **options: Any) -> Any:
        raise WorkspaceError("the disk said no.")

    with monkeypatch.context() as patch:
        patch.setattr(WorkspaceEngine, "restore", broken)
        error = command("restore", "NOTEBOOK", "1", status=1)
    assert "the disk said no" in error
    assert "is held by" in error
    assert (work / "w.txt").read_text() == "two"
    command("restore", "NOTEBOOK", "1")
    again = session()
    assert again.run("open(f'{E}/env.txt').read(), open('w.txt').read()").result == (
        "('one', 'one')"
    )


def test_what_does_not_exist_is_said(
    session: Callable[..., Any], command: Callable[..., str], tmp_path: Path
) -> None:
    assert "no store in" in command("sessions", "--store", str(tmp_path / "none"), status=1)
    notebook = session()
    notebook.run("1")
    end(notebook)
    assert "no session of nowhere.ipynb" in command("list", "nowhere.ipynb", status=1)
    error = command("restore", "NOTEBOOK", "99", status=1)
    assert "no checkpoint 99" in error
    assert "jupyter timetravel list" in error
    assert "no checkpoint" in command("diff", "NOTEBOOK", "nonsense", status=1)
    assert "is no age" in command("prune", "--older-than", "soon", status=1)
    assert "NOTEBOOK" in command("prune", "--session", status=1)


def test_prune_frees_the_disk_and_loses_nothing_that_is_kept(
    session: Callable[..., Any], command: Callable[..., str], work: Path
) -> None:
    notebook = session()
    notebook.run("import os\ndef fill(): open(f'{E}/big', 'wb').write(os.urandom(4 << 20))")
    notebook.run("mark('kept'); fill()")
    notebook.run("%checkpoint --label kept")
    for index in range(6):
        notebook.run(f"mark('{index}'); fill(); open('big', 'wb').write(os.urandom(1 << 20))")
    end(notebook)
    assert "checkpoint" not in command("prune", "--dry-run")  # nothing is 30 days old
    before = json.loads(command("sessions", "--json"))
    told = command("prune", "NOTEBOOK", "--keep", "0", "--dry-run")
    assert "8 checkpoints" in told
    assert "newer layers" in told
    assert json.loads(command("sessions", "--json")) | {"free_bytes": 0} == before | {
        "free_bytes": 0
    }
    command("prune", "NOTEBOOK", "--keep", "0")
    after = json.loads(command("sessions", "--json"))
    [was], [now] = before["sessions"], after["sessions"]
    assert now["checkpoints"] == 2  # the labelled one and the head
    assert was["environment_bytes"] - now["environment_bytes"] > 4 * (4 << 20)
    assert before["workspace_bytes"] - after["workspace_bytes"] > 4 << 20
    assert "nothing to delete" in command("prune", "NOTEBOOK", "--keep", "0")
    again = session()
    assert again.run("open(f'{E}/env.txt').read(), open('w.txt').read()").result == "('5', '5')"
    again.run("%restore kept --only files")
    cell = again.run("open(f'{E}/env.txt').read(), open('w.txt').read(), os.path.exists('big')"
                     " if 'os' in globals() else __import__('os').path.exists('big')")  # fmt: skip
    assert cell.result == "('kept', 'kept', False)"


def test_prune_takes_leftovers_but_not_what_is_in_use(
    session: Callable[..., Any], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PIN_S", -1)
    notebook = session()
    notebook.run("mark('one')")
    notebook.head()
    stored(command, 1)  # what is in the making is taken for a leftover here
    store = Path(os.environ["JUPYTER_TIMETRAVEL_STORE"])
    orphan = store / "environments" / ("0" * 32) / "layers" / "aa" / "files"
    orphan.mkdir(parents=True)
    (orphan / "closed").mkdir(mode=0)
    assert "in use" in command("prune", "--keep", "0")
    assert not orphan.exists()
    assert "A kernel runs on" in command("prune", "NOTEBOOK", "--keep", "0", status=1)
    assert "A kernel runs on" in command("prune", "NOTEBOOK", "--session", status=1)
    notebook.run("mark('two')")
    notebook.run("%restore 1")
    end(notebook)
    [info] = open_store(store).timelines()
    aside = store / "environments" / info.id / "layers" / "bb.unsynced" / "files"
    aside.mkdir(parents=True)
    command("prune")
    assert not aside.exists()
    told = command("prune", "NOTEBOOK", "--session")
    assert "whole session" in told
    assert json.loads(command("sessions", "--json"))["sessions"] == []
    assert not (store / "environments" / info.id).exists()
    assert list((store / "pins").iterdir()) == []


def test_prune_cut_short_between_its_steps(
    session: Callable[..., Any], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = session()
    for index in range(5):
        notebook.run(f"mark('{index}')")
    notebook.run("%checkpoint --label kept")
    notebook.run("mark('last')")
    end(notebook)

    def killed(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    for module, name in ((pruning, "_without"), (EnvironmentDirectory, "remove_layers")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            assert cli.main(["prune", str(notebook.cwd / "n.ipynb"), "--keep", "0"]) == 130
        again = session()
        assert again.run("open(f'{E}/env.txt').read()").result == "'last'"
        again.run("%restore kept --only files")
        assert again.run("open(f'{E}/env.txt').read()").result == "'4'"
        again.run("%restore --undo --only files")
        assert again.run("open(f'{E}/env.txt').read()").result == "'last'"
        end(again)
    command("prune", "NOTEBOOK", "--keep", "0")
    final = session()
    assert final.run("open(f'{E}/env.txt').read()").result == "'last'"


def test_all_leaves_the_present_state(
    session: Callable[..., Any], command: Callable[..., str]
) -> None:
    notebook = session()
    notebook.run("mark('one')")
    notebook.run("%checkpoint --pin")
    notebook.run("mark('two')")
    end(notebook)
    command("prune", "NOTEBOOK", "--keep", "0", "--all")
    assert command("list", "NOTEBOOK").strip() == "no checkpoints"
    again = session()
    assert again.run("open(f'{E}/env.txt').read(), open('w.txt').read()").result == (
        "('two', 'two')"
    )
