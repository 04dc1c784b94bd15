"""The magics without a supervisor: files only, in a stock kernel and in an IPython terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from jupyter_timetravel.files_only import FilesOnly
from kernel_runtime.errors import BadRequest, CheckpointRefused, RestoreRefused
from kernel_runtime.timeline import DeleteRefused

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="missing ability: Linux (workspace engine)"
)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def open_files(work, tmp_path):
    opened = []

    def make(**options):
        opened.append(FilesOnly(work, tmp_path / "store", **options))
        return opened[-1]

    yield make
    for files in opened:
        files.close()


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JUPYTER_TIMETRAVEL_STORE": str(tmp_path / "store"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "HOME": str(tmp_path),
    }


def test_files_go_back_and_forth(open_files, work):
    files = open_files()
    (work / "a").write_text("one")
    files.request("checkpoint", {"comment": "good"})
    (work / "a").write_text("three")
    (work / "b").write_text("new")
    assert {c["path"] for c in files.request("diff", {"a": 1})["files"]} == {"a", "b"}

    plan = files.request("restore", {"checkpoint": "good", "only": "files", "dry_run": True})
    assert (work / "b").exists() and "Nothing was changed" in plan["text"]
    done = files.request("restore", {"checkpoint": "good", "only": "files"})
    assert (work / "a").read_text() == "one" and not (work / "b").exists()
    assert "2 files" in done["text"] and done["safety"]["number"] == 2

    files.request("restore", {"undo": True, "only": "files"})
    assert (work / "a").read_text() == "three" and (work / "b").read_text() == "new"
    assert [r["number"] for r in files.request("list", {})["checkpoints"]] == [1, 2, 3]


def test_memory_is_refused_with_what_to_do(open_files):
    files = open_files()
    files.request("checkpoint", {})
    with pytest.raises(RestoreRefused, match="--only files") as caught:
        files.request("restore", {"checkpoint": 1})
    assert "Python 3 (time travel)" in str(caught.value)
    with pytest.raises(BadRequest, match="files only"):
        files.request("subscribe", {})


def test_the_timeline_is_there_again_the_next_time(open_files, work):
    first = open_files()
    (work / "a").write_text("one")
    first.request("checkpoint", {"label": "L"})
    second = open_files()  # in use: one of its own
    assert second.request("list", {})["checkpoints"] == []
    first.close()
    (work / "a").write_text("two")
    third = open_files()
    third.request("restore", {"checkpoint": "L", "only": "files"})
    assert (work / "a").read_text() == "one"


def test_labels_pins_and_deletion(open_files, work):
    files = open_files()
    for n in range(3):
        (work / "a").write_text(str(n))
        files.request("checkpoint", {})
    files.request("label", {"checkpoint": 1, "label": "first"})
    files.request("pin", {"checkpoint": "first"})
    with pytest.raises(DeleteRefused):
        files.request("delete", {"checkpoint": 1})
    files.request("delete", {"checkpoint": 2})
    listing = files.request("list", {})
    assert [r["number"] for r in listing["checkpoints"]] == [1, 3]
    assert files.request("status", {})["counts"]["checkpoints"] == 2


def test_a_directory_that_is_too_large_is_refused(open_files, work, monkeypatch):
    from kernel_runtime.engines.workspace.engine import WorkspaceEngine

    files = open_files()
    (work / "a").write_text("x")
    estimate = WorkspaceEngine.estimate
    monkeypatch.setattr(WorkspaceEngine, "estimate", lambda self: estimate(self, max_files=0))
    with pytest.raises(CheckpointRefused, match="too large"):
        files.request("checkpoint", {})
    assert files.request("list", {})["checkpoints"] == []


def test_in_a_terminal(work, environment):
    (work / "a").write_text("one")
    code = (
        "%load_ext jupyter_timetravel\n%checkpoint good\nopen('a', 'w').write('two');\n"
        "%restore good\n%restore good --only files\nprint(open('a').read())\n%timeline\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner"],
        input=code,
        env=environment,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = done.stdout
    assert "time travel for the files in" in told, told + done.stderr
    assert "jupyter console --kernel python3-timetravel" in told
    assert 'checkpoint #1 "good"' in told
    assert "RestoreRefused: Memory cannot be brought back in this kernel" in told
    assert 'restored #1 "good": 1 file' in told
    assert (work / "a").read_text() == "one"
    assert "you are here" in told
    assert "Traceback" not in told + done.stderr


def test_in_a_stock_kernel(work, environment):
    (work / "a").write_text("one")
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(work), env=environment)
    told = []

    def note(message):
        if message["msg_type"] == "stream":
            told.append(message["content"]["text"])

    try:
        for code in (
            "%load_ext jupyter_timetravel",
            "%checkpoint good",
            "open('a', 'w').write('two')",
            "%restore 1 --only files",
        ):
            reply = client.execute_interactive(code, timeout=60, output_hook=note)
            assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert (work / "a").read_text() == "one"
    assert 'restored #1 "good": 1 file' in "".join(told)
