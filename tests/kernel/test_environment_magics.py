"""What cells change outside of the workspace: told, listed, copied out, reset, tried and undone."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_timetravel import AsyncClient, Client
from tests.conftest import UNTIL_GO


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory that is covered: /tmp is the host's own inside."""
    made = Path(tempfile.mkdtemp(prefix="tt-magics-", dir=os.path.expanduser("~")))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def start(home: Path, start_notebook: Callable, ability: Callable[[str, bool], None]) -> Callable:
    """Start a kernel in that home, where the environment is covered."""

    def begin(*arguments: str, cwd: Path | None = None):
        notebook = start_notebook(*arguments, env={"HOME": str(home)}, cwd=cwd)
        asked = {"version": 1, "command": "status", "args": {}}
        status = notebook.control("timetravel_request", asked)
        # an isolated workspace is refused where the environment cannot be covered
        covered = status["result"]["environment"]["covered"] if status["status"] == "ok" else []
        inside = any(str(home).startswith(root.rstrip("/") + "/") for root in covered)
        ability("the environment is covered", inside)
        notebook.run(f"import os, sys; home = {str(home)!r}")
        return notebook

    return begin


@pytest.fixture
def session(start):
    return start()


def wheel(directory: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A package that pip can install without a network."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{path},sha256={digest.rstrip(b'=').decode()},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


@pytest.fixture
def pip(session, home: Path, tmp_path: Path) -> str:
    """A shell line that installs into a virtual environment of the home; tinynum 1.0 is there."""
    for version in ("1.0", "2.0"):
        code = f"__version__ = {version!r}\n"
        wheel(tmp_path, "tinynum", version, {"tinynum/__init__.py": code})
    session.run("import venv; venv.create(home + '/v', system_site_packages=True)")
    options = f"--quiet --disable-pip-version-check --no-index --find-links {tmp_path}"
    session.run(
        f"pip = f'{{sys.executable}} -m pip --python {{home}}/v/bin/python install {options}'\n"
        "site = f'{home}/v/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages'\n"
        "sys.path.insert(0, site)\n"
        "!{pip} tinynum==1.0\n"
    )
    return "!{pip}"


def said(notebook, until="") -> str:
    """What comes after a cell has ended, in the background; until: waited for, however long."""
    notebook.until_said(until)
    messages = [m for m in notebook.settle(0.8) if m["msg_type"] == "stream"]
    return "".join(m["content"]["text"] for m in messages)


# -- reports ----------------------------------------------------------------------------------


def test_packages_files_and_environment_variables_are_named(session, pip, home):
    session.run("%checkpoint --label one")
    session.run(
        f"{pip} tinynum==2.0\n"
        "open(home + '/run.csv', 'w').write('1')\n"
        "os.environ.update(PLACE='there', MY_TOKEN='s3cret', URL='http://me:pw@host/');"
    )
    told = session.run("%timeline diff one").out
    assert "1 package" in told and "3 environment variables" in told, told
    assert "  packages tinynum 1.0 → 2.0" in told
    assert f"+ {home}/run.csv" in told
    assert "  ~ $PLACE  not set → there" in told
    assert "  ~ $MY_TOKEN  not set → (not shown)" in told and "s3cret" not in told
    assert "pw@host" not in told

    told = session.run("%restore one --dry-run").out
    assert "tinynum 2.0 → 1.0" in told and f"- {home}/run.csv" in told
    assert "  ~ $PLACE  there → not set" in told
    told = session.run("%restore one").out
    assert told.startswith("restored #") and "nothing differed" not in told
    assert "environment variables as before: MY_TOKEN, PLACE, URL" in told
    assert not os.path.exists(home / "run.csv")
    assert session.run("print(os.path.exists(home + '/run.csv'))").out == "False"
    assert "environ" not in str(session.command("get", checkpoint="one")["variables"])


def test_only_a_file_outside_is_a_difference(session, home):
    session.cells("%checkpoint --label before", "with open(home + '/a', 'w') as f: f.write('x')")
    told = session.run("%restore before").out
    assert "1 file outside of the workspace" in told and f"- {home}/a" in told, told
    assert "nothing differed" not in told
    # what a restore takes longer to find out is told to clients in any case
    with Client(session.client) as client:
        result = client.restore(undo=True)
        assert [c.path for c in result.differences.environment if c.kind == "created"]
        assert result.differences.environment_complete and not result.differences.is_empty


def test_the_first_file_outside_is_told_once(session, home):
    session.run("os.makedirs(home + '/.cache/x'); open(home + '/.cache/x/y', 'w').close()")
    assert "time travel" not in said(session)
    session.run("open(home + '/result.csv', 'w').close()")
    told = said(session, "%timetravel apply")
    assert told.count("%timetravel apply PATH") == 1 and f"{home}/result.csv" in told
    session.run("open(home + '/more.csv', 'w').close()")
    assert said(session) == ""


def test_a_loaded_package_of_another_version_is_told_once(session, pip):
    session.run("import tinynum")
    said(session)
    before = session.head()["number"]
    session.run(f"{pip} tinynum==2.0")
    told = said(session, "is installed now")
    assert "tinynum 1.0 is loaded; 2.0 is installed now" in told, told
    assert f"`%restore {before}`" in told
    session.run(f"{pip} --force-reinstall tinynum==2.0")
    assert "is loaded" not in said(session)
    session.run(f"%restore {before}")
    session.run(f"{pip} --force-reinstall tinynum==1.0")
    assert "is loaded" not in said(session)


# -- files, apply, reset ------------------------------------------------------------------------


def test_what_the_host_does_not_have_is_listed_by_directory(session, home):
    session.run(
        "os.makedirs(home + '/model/parts/__pycache__'); os.makedirs(home + '/.cache')\n"
        "for n in range(30): open(f'{home}/model/parts/{n}.bin', 'w').write('x' * 100)\n"
        "open(home + '/model/parts/__pycache__/a.pyc', 'w').write('x')\n"
        "open(home + '/.cache/big', 'w').write('x' * 5000)\n"
        "open(home + '/notes.txt', 'w').write('n');"
    )
    told = session.run("%timetravel files").out
    assert f"  {home}/model/  30 files, 3.0 kB" in told, told
    assert f"  {home}/  1 file, 1 B: notes.txt" in told
    assert "  caches: 2 files, 5.0 kB" in told
    assert "a.pyc" not in told
    told = session.run("%timetravel files --all").out
    assert f"  + {home}/model/parts/7.bin  100 B" in told and "a.pyc" in told
    found = session.command("outside")
    assert found["complete"] and found["caches"] == {"files": 2, "bytes": 5001}
    assert os.listdir(home) == []


def test_files_are_copied_to_the_host_when_asked(session, home):
    (home / "mine.txt").write_text("host")
    session.run(
        "os.makedirs(home + '/results/deep'); open(home + '/results/deep/a', 'w').write('one')\n"
        "open(home + '/secret', 'w').close(); os.chmod(home + '/secret', 0o600)\n"
        "os.symlink('results', home + '/link');"
    )
    told = session.run("%timetravel apply ~/results --dry-run").out
    assert told.startswith("would be copied to this machine: 3 created (3 B)"), told
    assert not (home / "results").exists()
    told = session.run("%timetravel apply ~/results ~/secret ~/link").out
    assert told.startswith("copied to this machine: 5 created"), told
    assert (home / "results/deep/a").read_text() == "one"
    assert (home / "secret").stat().st_mode & 0o777 == 0o600
    assert os.readlink(home / "link") == "results"
    assert session.run("%timetravel apply ~/results").out.startswith("nothing to copy")
    # what was copied before is no change of the host's
    session.run("open(home + '/results/deep/a', 'w').write('two');")
    assert "1 replaced" in session.run("%timetravel apply ~/results").out
    assert (home / "results/deep/a").read_text() == "two"
    # one is
    session.run("open(home + '/mine.txt', 'w').write('inside');")
    (home / "mine.txt").write_text("host again")
    refused = session.run("%timetravel apply ~/mine.txt", ok=False)
    assert refused.error.startswith("ApplyRefused"), refused.error
    assert (home / "mine.txt").read_text() == "host again"
    session.run("%timetravel apply ~/mine.txt --force")
    assert (home / "mine.txt").read_text() == "inside"
    # a file that was deleted inside is deleted here
    session.run("os.unlink(home + '/mine.txt')")
    assert "1 deleted" in session.run("%timetravel apply ~/mine.txt --force").out
    assert not (home / "mine.txt").exists()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("apply", "BadRequest: Name the files"),
        ("apply nothing-there", "EnvironmentRefused"),
        ("apply /tmp/x", "EnvironmentRefused: /tmp/x is this machine's own"),
        ("apply ~/nowhere", "EnvironmentRefused: There is no"),
    ],
)
def test_what_cannot_be_copied_is_refused(session, line, error):
    assert session.run(f"%timetravel {line}", ok=False).error.startswith(error)


def test_an_isolated_workspace_is_copied_as_a_whole(start, home):
    work = home / "nb"
    work.mkdir()
    (work / "old.csv").write_text("old")
    session = start("--Supervisor.workspace=isolated", cwd=work)
    session.run("%checkpoint --label clean")
    session.run("open('new.csv', 'w').write('new'); os.unlink('old.csv')")
    assert f"what cells write, as {work}/new.csv, is seen by this notebook only" in said(
        session, "this notebook only"
    )
    assert sorted(os.listdir(work)) == ["old.csv"]
    told = session.run("%timeline diff clean").out
    assert "2 files" in told and "+ new.csv" in told and "outside" not in told, told
    assert "2 files" in session.run("%restore clean --dry-run").out
    assert "1 created, 1 deleted" in session.run("%timetravel apply --dry-run").out
    assert sorted(os.listdir(work)) == ["old.csv"]
    assert "1 created, 1 deleted" in session.run("%timetravel apply").out
    assert sorted(os.listdir(work)) == ["new.csv"]


def test_a_reset_throws_away_what_is_outside_and_can_be_undone(session, home):
    session.run("x = 1; open(home + '/a', 'w').write('a'); open('w', 'w').write('w');")
    cell = session.run("%timetravel reset\nprint(x, os.path.exists(home + '/a'))")
    assert "the environment is clean again: 1 file outside" in cell.out, cell.out
    assert "%restore --undo takes the reset back" in cell.out
    assert cell.out.endswith("\n1 False")
    assert session.run("print(x, os.path.exists('w'))").out == "1 True"
    session.run("%restore --undo")
    assert session.run("print(x, open(home + '/a').read())").out == "1 a"


def test_a_reset_with_a_fresh_process(session, home):
    session.run("x = 1; open(home + '/a', 'w').write('a');")
    cell = session.run("%timetravel reset --process\nprint('not run')")
    assert "in a fresh process" in cell.out and "not run" not in cell.out
    assert session.run("print('x' in dir())").out == "False"
    assert session.run(f"import os; print(os.path.exists('{home}/a'))").out == "False"
    session.run("%restore --undo")
    assert session.run("print(x, open(home + '/a').read())").out == "1 a"


def test_clients_reset_list_and_copy(session, home):
    session.run("x = 1; open(home + '/a', 'w').write('abc');")
    with Client(session.client) as client:
        assert client.status().environment["covered"]
        found = client.outside(each=True)
        assert [(f.path, f.kind, f.size) for f in found.files] == [(f"{home}/a", "created", 3)]
        assert found.directories[0].path == str(home) and found.directories[0].names == ("a",)
        plan = client.apply(home / "a", dry_run=True)
        assert plan.dry_run and not (home / "a").exists()
        done = client.apply(home / "a")
        assert [(one.action, one.note) for one in done.done] == [("created", "")]
        assert (home / "a").read_text() == "abc" and done.bytes == 3
        (home / "a").unlink()
        result = client.reset()
        assert [c.kind for c in result.environment] == ["deleted"] and not result.process
        assert result.safety.reason == "safety"
        assert session.run("print(x, os.path.exists(home + '/a'))").out == "1 False"
        assert client.reset(process=True).process
        assert session.run("print('x' in dir())").out == "False"


# -- dryrun and transaction -----------------------------------------------------------------------


def test_a_dry_run_shows_what_a_cell_does_and_takes_it_back(session, pip, home):
    session.run("x = [1]")
    cell = session.run(
        "%%dryrun\nimport asyncio\nawait asyncio.sleep(0.01)\nx.append(2); y = 3\n"
        "open('w', 'w').write('w'); open(home + '/a', 'w').write('a')\n"
        f"{pip} tinynum==2.0\n%precision 3\ny"
    )
    assert cell.result == "3" and "asyncio" in cell.out
    assert "%%dryrun: the cell changed" in cell.out, cell.out
    assert "  + y  int 3" in cell.out and "  ~ x  list" in cell.out and "  + w  1 B" in cell.out
    assert "tinynum 1.0 → 2.0" in cell.out and f"+ {home}/a" in cell.out
    assert session.run("print(x, 'y' in dir(), os.path.exists('w'))").out == "[1] False False"
    assert session.run("import tinynum; print(tinynum.__version__)").out == "1.0"
    session.run("%restore --undo")
    assert session.run("print(x, y, os.path.exists(home + '/a'))").out == "[1, 2] 3 True"


def test_a_dry_run_of_a_cell_that_fails(notebook):
    notebook.run("x = 1")
    cell = notebook.run("%%dryrun\nx = 2\n1/0", ok=False)
    assert cell.reply["ename"] == "ZeroDivisionError" and len(cell.of_type("error")) == 1
    assert "line 3" in "".join(cell.reply["traceback"])
    assert "  ~ x  int 1 → int 2" in cell.out
    assert notebook.run("print(x)").out == "1"


def test_a_transaction_that_succeeds_is_kept(notebook):
    cell = notebook.run("%%transaction\nx = 1; open('w', 'w').close()\nx + 1")
    assert cell.result == "2" and "taken back" not in cell.out
    assert notebook.run("print(x)").out == "1" and (notebook.cwd / "w").exists()
    comments = [r["comment"] for r in notebook.command("list")["checkpoints"]]
    assert "before %%transaction" in comments
    raw = "print(get_ipython().history_manager.input_hist_raw[1])"
    assert notebook.run(raw).out.startswith("%%transaction\nx = 1")


def test_a_transaction_that_fails_is_taken_back(notebook):
    notebook.run("x = 1")
    transaction = f"%%transaction try\n{UNTIL_GO}x = 2\nopen('w', 'w')\nboom"
    failed, aborted = map(notebook.wait, notebook.send_queue(transaction, "x = 5"))
    assert failed.reply["ename"] == "NameError" and failed.reply["traceback"]
    assert len(failed.of_type("error")) == 1
    assert "the cell failed, after it had changed" in failed.out
    assert aborted.reply["status"] == "aborted"
    assert notebook.run("print(x)").out == "1"
    assert not (notebook.cwd / "w").exists()
    assert "try" in [r["comment"] for r in notebook.command("list")["checkpoints"]]


def test_transactions_around_other_things(notebook):
    notebook.run("x = 1")
    cell = notebook.run("%%transaction\n%%bash\ntouch w; exit 3", ok=False)
    assert "CalledProcessError" in cell.error and not (notebook.cwd / "w").exists()
    cell = notebook.run("%%transaction\nx = 2\nraise KeyboardInterrupt", ok=False)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert notebook.run("print(x)").out == "1"
    # a restore in it is a restore
    assert notebook.run("%%transaction\nx = 2\n%restore 1").out.startswith("restored #1")
    # a process that dies goes back to where the cell began
    cell = notebook.run("%%transaction\nx = 3; os = __import__('os'); os._exit(1)", ok=False)
    assert "ExecutorDied" in cell.error
    assert notebook.run("print(x)").out == "1"
    # no nesting
    cell = notebook.run("%%transaction\n%%dryrun\nx = 4", ok=False)
    assert "first line of a cell" in cell.text("stderr")
    assert notebook.run("x").result == "1"
    # the checkpoint before one can be restored like any other
    number = next(
        r["number"]
        for r in notebook.command("list")["checkpoints"]
        if r["comment"] == "before %%transaction"
    )
    notebook.run(f"%restore {number}")
    assert notebook.cells("x += 1", "print(x)")[1].out == "2"


def test_nothing_is_run_where_nothing_can_be_held(start_notebook):
    notebook = start_notebook("--Supervisor.stop_timeout=0.02")
    notebook.run(
        "import ctypes, threading, time\n"
        "blocked = threading.Event()\n"
        "def deaf():\n"
        "    libc = ctypes.CDLL(None)\n"
        "    mask = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)\n"
        "    libc.syscall(14, 0, mask, None, 8)\n"  # rt_sigprocmask: all signals, ours too
        "    blocked.set()\n"
        "    while True: time.sleep(0.01)\n"
        "threading.Thread(target=deaf, daemon=True).start(); blocked.wait()"
        if sys.platform == "linux" and os.uname().machine == "x86_64"
        else "raise SystemError"
    )
    cell = notebook.run("%%transaction\nprint('ran')", ok=False)
    assert cell.error.startswith("CheckpointRefused: The memory before the cell"), cell.error
    assert "ran" not in cell.out


# -- small things ---------------------------------------------------------------------------------


def test_a_variable_names_a_checkpoint_and_blanks_are_no_comment(notebook):
    notebook.cells("n = 1", "n = 1; x = 2")
    assert notebook.run("%checkpoint '   '").out.startswith("checkpoint #3 (")
    assert notebook.command("checkpoint", comment="  ")["checkpoint"]["comment"] == ""
    assert "restoring #1 " in notebook.run("%restore {n} --dry-run").out
    assert "restoring #1 " in notebook.run("%restore $n --dry-run").out
    assert notebook.run("%restore {nothing}", ok=False).error.startswith("UnknownCheckpoint")


def test_where_the_environment_is_not_covered_it_says_so(start_notebook):
    notebook = start_notebook("--Supervisor.environment=off")
    for line in ("files", "apply /root/x", "reset", "reset --process"):
        cell = notebook.run(f"%timetravel {line}", ok=False)
        assert cell.error.startswith("EnvironmentRefused"), (line, cell.error)
        assert "Nothing was done" in cell.error
    cell = notebook.run("%%dryrun\nx = 1")
    assert "files outside of the workspace stay" in cell.text("stderr")
    assert "  + x  int 1" in cell.out
    assert notebook.run("print('x' in dir())").out == "False"


async def test_the_same_for_asyncio(session, home):
    session.run("open(home + '/a', 'w').write('abc');")
    async with AsyncClient(session.client) as client:
        (directory,) = (await client.outside()).directories
        assert (directory.path, directory.files, directory.bytes) == (str(home), 1, 3)
        assert [one.action for one in (await client.apply(home / "a")).done] == ["created"]
        assert (await client.reset()).text.startswith("the environment is clean again")
        assert (await client.outside()).directories == ()


@pytest.mark.parametrize("option", ["", " --process"])
def test_a_reset_that_fails_changes_nothing(start, home, monkeypatch, option):
    monkeypatch.setenv("TIMETRAVEL_FAULT", "environment reset")
    session = start()
    session.run("x = 1; f = open(home + '/a', 'w'); f.write('abc'); f.flush()")
    cell = session.run(f"%timetravel reset{option}", ok=False)
    assert cell.error.startswith("RestoreFailed: The environment could not be reset"), cell.error
    assert session.run("print(x, open(home + '/a').read())").out == "1 abc"
    session.run("f.write('def'); f.close()")
    assert session.run("print(open(home + '/a').read())").out == "abcdef"
    assert "clean again" in session.run(f"%timetravel reset{option}").out
