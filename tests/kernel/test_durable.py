"""The copy on the disk: written in the background, it outlives process, kernel and supervisor."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_timetravel import cli
from tests.kernel.durable_world import durable, kill, namespace, stats, timeline
from tests.waiting import until

SESSION = """
import random, numpy as np
random.seed(7); random.random()
a = np.arange(6.0); view = a[::2]
class Account:
    made = 0
    def __init__(self, name): self.name = name; Account.made += 1
mine = Account('mine'); both = [mine, mine]
def double(x): return factor * x
factor = 2
words = {'alpha', 'beta', 'gamma', 'delta'}; order = list(words)
"""
CHECK = """
a[0] = 9
print(view[0], both[0] is both[1] is mine, isinstance(mine, Account), Account('b').made)
factor = 5; print(double(2), list(words) == order, round(random.random(), 6))
"""


def test_after_kill_of_everything_the_session_goes_on(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    first = start_notebook(**document)
    first.run(SESSION)
    first.run("%checkpoint --label good")
    capture = durable(first, 2)
    assert capture["state"] == "ready" and not capture["not_captured"], capture
    expected = first.run(CHECK).out
    kill(first)

    second = start_notebook(**document)
    told = second.run("1").text("stderr")
    assert "%timetravel resume" in told
    assert second.run("a", ok=False).error.startswith("NameError")
    text = second.run("%restore good").out
    assert text.startswith("restored #2") and "a fresh one has the variables" in text
    assert second.run(CHECK).out == expected
    # and that restore can be undone like any other
    second.run("%restore --undo")
    assert second.run("'a' in dir()").result == "False"


def test_variables_that_are_on_the_disk_are_not_written_again(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """Whoever asks for them while others are being written waits; what is ready stays it."""
    notebook = start_notebook(**document)
    notebook.run("x = 1; words = [str(i) for i in range(300_000)]")
    made = notebook.run("%checkpoint --label asked").out
    notebook.run("%restore asked --vars x")
    assert durable(notebook, int(made.split()[1].strip("#")))["state"] == "ready"
    notebook.run("x = 2")
    last = notebook.run("%checkpoint --label last").out
    assert durable(notebook, int(last.split()[1].strip("#")))["state"] == "ready"
    for _ in range(30):
        record = notebook.command("get", checkpoint="asked")["checkpoint"]
        assert namespace(record)["state"] == "ready"
        time.sleep(0.1)


def test_resume_leaves_files_alone(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    first = start_notebook("--Supervisor.durability_interval=0", **document)
    first.run("x = [1]; y = x; open('f', 'w').write('old')")
    durable(first, 1)
    kill(first)
    (document["cwd"] / "f").write_text("edited since")
    second = start_notebook("--Supervisor.resume=auto", **document)
    cell = second.run("y.append(2); print(x)")
    assert cell.out == "[1, 2]" and "restored #1" in cell.text("stderr")
    assert (document["cwd"] / "f").read_text() == "edited since"


def test_shutdown_writes_what_is_not_written_yet(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    first = start_notebook(
        "--Supervisor.durability_interval=600", "--Supervisor.durability_at_end=60", **document
    )
    first.run("early = 1")
    first.run("late = 2")
    first.head()
    first.manager.shutdown_wait_time = 60.0
    first.manager.shutdown_kernel()
    second = start_notebook(**document)
    second.run("%timetravel resume")
    assert second.run("early, late").result == "(1, 2)"


def test_the_checkpoint_that_was_gone_back_to_is_written(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """It was skipped when others came after it, and is what a resume goes on from."""
    first = start_notebook(
        "--Supervisor.durability_interval=600", "--Supervisor.durability_at_end=60", **document
    )
    for code in ("early = 1", "late = 2", "left = 3", "%restore 2"):
        first.run(code)
    first.manager.shutdown_wait_time = 60.0
    first.manager.shutdown_kernel()
    second = start_notebook(**document)
    assert "restored #2" in second.run("%timetravel resume").out
    assert second.run("early, late, 'left' in dir()").result == "(1, 2, False)"
    # and so was what was left, though another was written before it
    left = next(r for r in second.command("list")["checkpoints"] if r["reason"] == "safety")
    assert namespace(left)["state"] == "ready"
    second.run(f"%restore {left['number']}")
    assert second.run("early, late, left").result == "(1, 2, 3)"


def test_who_asks_twice_does_not_cut_the_end_short(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """A server asks, and then sends a signal: both ask for one and the same end."""
    first = start_notebook(
        "--Supervisor.durability_interval=600", "--Supervisor.durability_at_end=60", **document
    )
    first.run("early = 1")
    first.run(
        "import os, time\n"
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        while not os.path.exists('go'): time.sleep(0.02)\n"
        "        return list, ()\n"
        "slow = Slow()"
    )
    first.head()
    supervisor = psutil.Process(first.pid)
    first.manager.request_shutdown()
    until(lambda: first.command("status")["ending"])
    supervisor.terminate()
    assert first.command("status")["ending"]  # by then it has seen the signal
    (document["cwd"] / "go").touch()
    supervisor.wait(60)
    second = start_notebook(**document)
    second.run("%timetravel resume")
    assert second.run("early, 'slow' in dir()").result == "(1, True)"


def test_policies(start_notebook: Callable[..., Any], document: dict[str, Any]) -> None:
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("x = 1")
    notebook.run("%checkpoint kept")
    assert durable(notebook, 2)["state"] == "ready"
    assert namespace(notebook.command("get", checkpoint=1)["checkpoint"])["state"] is None
    notebook.command("pin", checkpoint=1)
    assert durable(notebook, 1)["state"] == "ready"
    assert "durable" in timeline(notebook)


def test_what_cannot_be_kept_is_named_and_costs_only_itself(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook(**document)
    notebook.run("data = [1]; nested = {'ok': data, 'bad': (i for i in 'ab')}\ngood = {'d': data}")
    capture = durable(notebook, 1)
    assert [note["subject"] for note in capture["not_captured"]] == ["nested"]
    assert "generator" in capture["not_captured"][0]["detail"]
    assert "without nested" in timeline(notebook)
    # the process still has it
    notebook.run("%restore 1")
    assert notebook.run("next(nested['bad'])").result == "'a'"
    kill(notebook)
    second = start_notebook(**document)
    assert "not brought back: nested" in second.run("%restore 1").out
    assert second.run("data.append(2); good").result == "{'d': [1, 2]}"
    assert second.run("nested", ok=False).error.startswith("NameError")


def test_one_that_ends_the_process_that_pickles_it_costs_only_itself(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook("--Supervisor.images=False", **document)
    notebook.run(
        "class Fatal:\n"
        "    def __reduce__(self): import os; os._exit(3)\n"
        "class Fatal2:\n"
        "    def __reduce__(self): import ctypes; ctypes.string_at(0)\n"
        "fatal = Fatal(); held = [fatal]; second = Fatal2(); fine = [1]; same = fine"
    )
    capture = durable(notebook, 1)
    assert capture["state"] == "ready", capture
    lost = {note["subject"]: note["detail"] for note in capture["not_captured"]}
    assert set(lost) == {"fatal", "held", "second"}, lost
    assert all("pickling it ends the process" in why for why in lost.values()), lost
    kill(notebook)
    second = start_notebook(**document)
    told = second.run("%restore 1").out
    assert "not brought back: fatal: pickling it ends the process" in told, told
    assert second.run("same.append(2); print(fine, 'held' in dir(), 'Fatal' in dir())").out == (
        "[1, 2] False True"
    )


def test_single_variables_into_the_present(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("rows = [1, 2]; same = rows; other = 'old'; class_ = type('C', (), {})")
    notebook.run("rows.append(3); other = 'new'; later = 1")
    text = notebook.run("%restore 1 --vars rows,same").out
    assert text.startswith("rows, same as they were at #1")
    check = "rows.append('x'); print(rows, same is rows, other, later)"
    assert notebook.run(check).out == "[1, 2, 'x'] True new 1"
    notebook.run("%restore --undo")
    assert notebook.run("rows, other").result == "([1, 2, 3], 'new')"
    assert "no variable 'nothing'" in notebook.run("%restore 1 --vars nothing", ok=False).error
    reply = notebook.run("%restore 1 --vars x --only files", ok=False).reply
    assert reply["ename"] == "UsageError" and "--vars goes with" in reply["evalue"]
    brought = notebook.command("bring", checkpoint=1, names=["other"])
    assert brought["names"] == ["other"] and notebook.run("other").result == "'old'"


def test_verified(start_notebook: Callable[..., Any], document: dict[str, Any]) -> None:
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("x = list(range(5)); text = 'abc' * 100")
    notebook.run("%checkpoint one")
    durable(notebook, 2)
    assert "all held" in notebook.run("%timetravel verify").out
    record = notebook.command("get", checkpoint=2)["checkpoint"]
    assert namespace(record)["verified_at"]
    assert "verified" in notebook.run("%timeline 2").out


def test_a_copy_is_not_the_session(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """What pickling runs reaches neither files nor the network nor the session."""
    notebook = start_notebook(**document)
    notebook.run(
        "import os, socket\n"
        "class Nosy:\n"
        "    def __getstate__(self):\n"
        "        tried = []\n"
        "        for name, act in (('file', lambda: open('written', 'w')),\n"
        "                          ('net', lambda: socket.create_connection(('::1', 9), 1)),\n"
        "                          ('kill', lambda: os.kill(os.getppid(), 0)),\n"
        "                          ('run', lambda: os.system('true') and 1 / 0)):\n"
        "            try: act(); tried.append(name + ' worked')\n"
        "            except ConnectionRefusedError: tried.append(name + ' reached')\n"
        "            except (OSError, ZeroDivisionError): tried.append(name + ' refused')\n"
        "        return {'tried': tried}\n"
        "n = Nosy()"
    )
    assert durable(notebook, 1)["state"] == "ready"
    assert not (document["cwd"] / "written").exists()
    kill(notebook)
    second = start_notebook(**document)
    second.run("%restore 1")
    assert set(second.run("print(*n.tried, sep='|')").out.split("|")) == {
        "file refused",
        "net refused",
        "kill refused",
        "run refused",
    }


def test_retention_keeps_the_newest_and_what_was_asked_for(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    settings = ("--Supervisor.keep_last=5", "--Supervisor.keep_hourly=0")
    notebook = start_notebook(*settings, "--Supervisor.keep_daily=0", **document)
    notebook.run("x = 0")
    notebook.run("%checkpoint kept")
    for _ in range(8):
        notebook.run("x += 1")

    def left() -> list[int]:
        return [c["number"] for c in notebook.command("list")["checkpoints"]]

    until(lambda: len(left()) < 9 and 1 not in left())
    assert 2 in left() and left()[-1] == 10
    assert notebook.run("%restore 2\n").status == "ok" and notebook.run("x").result == "0"


def test_a_budget_is_kept_and_nothing_that_was_asked_for_goes(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    settings = ("--Supervisor.budget_bytes=6000000", "--Supervisor.images=False")
    notebook = start_notebook(*settings, "--Supervisor.durability=manual", **document)
    notebook.run("import os")
    notebook.run("_ = open('f', 'wb').write(os.urandom(1_000_000))")
    notebook.run("%checkpoint --label kept")
    told = ""
    for _ in range(13):
        told += notebook.run("_ = open('f', 'wb').write(os.urandom(1_000_000))").text("stderr")
    end = time.monotonic() + 110
    while True:
        left = [c["number"] for c in notebook.command("list")["checkpoints"]]
        size = sum(file.st_size for file in stats(tmp_path / "store" / "blobs"))
        store = notebook.command("status")["store"]
        if 4 not in left and size < 7_500_000 and store["bytes"] <= 6_000_000:
            break
        assert time.monotonic() < end, (left, size)
        told += notebook.run("pass").text("stderr")  # after ten checkpoints it is weighed again
    assert 3 in left and 16 in left, left
    said = "deleted: this notebook's checkpoints took more than the 6.0 MB"
    told = told if said in told else until_told(notebook, said)
    assert "automatic checkpoint" in told and "made by hand stays" in told
    assert store["budget_bytes"] == 6_000_000 and not store["is_default"]
    assert store["bytes"] > 1_000_000, store
    assert "restored" in notebook.run("%restore kept").out
    notebook.run("%timetravel config budget_bytes=500000")
    told = ""
    for _ in range(11):
        told += notebook.run("_ = open('f', 'wb').write(os.urandom(1_000_000))").text("stderr")
        told += notebook.run("%checkpoint").text("stderr")
    end = time.monotonic() + 110
    while not any("budget_bytes" in text for text in notebook.command("status")["limits"]):
        assert time.monotonic() < end
        time.sleep(0.1)
    said = "is never deleted for its size"
    assert said in told or until_told(notebook, said)
    assert "kept" in [c["label"] for c in notebook.command("list")["checkpoints"]]


def until_told(notebook: Any, text: str) -> str:
    """What a cell says of time travel, once one says this."""
    end = time.monotonic() + 110
    while text not in (told := notebook.run("pass").text("stderr")):
        assert time.monotonic() < end, text
        time.sleep(0.1)
    return str(told)


def test_near_the_budget_a_cell_says_so_once_and_nothing_goes(
    start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    settings = ("--Supervisor.budget_bytes=6000000", "--Supervisor.images=False")
    notebook = start_notebook(*settings, "--Supervisor.durability=manual", **document)
    notebook.run("import os; _ = open('f', 'wb').write(os.urandom(5_700_000))")
    assert "6.0 MB that budget_bytes allows" in until_told(notebook, "the oldest automatic ones")
    numbers = [c["number"] for c in notebook.command("list")["checkpoints"]]
    assert numbers == list(range(len(numbers)))


def test_there_is_a_budget_unless_one_says_that_there_is_none(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path).free
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    status = notebook.command("status")
    store = status["store"]
    assert status["config"]["budget_bytes"] == "auto" and store["is_default"]
    # others write to the disk meanwhile
    assert 256 << 20 <= store["budget_bytes"] <= max(256 << 20, free // 2)
    assert store["filesystem"] and store["journal"] in ("wal", "truncate")
    shown = notebook.run("%timetravel status").out
    assert "for this notebook's checkpoints, of at most" in shown, shown
    assert "(a share of the free disk)" in shown and f"({store['filesystem']}: " in shown
    notebook.run("%timetravel config budget_bytes=0")
    assert notebook.command("status")["store"]["budget_bytes"] == 0
    notebook.run("%timetravel config budget_bytes=auto")
    assert notebook.command("status")["store"]["is_default"]


def test_restored_and_verified_from_the_shell(
    start_notebook: Callable[..., Any],
    document: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = tmp_path / "jupyter" / "kernels" / "python3-timetravel"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "ours"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebook = start_notebook("--Supervisor.durability=manual", **document)
    notebook.run("x = 1; it = (i for i in 'ab')")
    notebook.run("%checkpoint --label one")
    notebook.run("x = 2")
    notebook.run("%checkpoint --label two")
    durable(notebook, 2), durable(notebook, 4)
    path = document["env"]["JPY_SESSION_NAME"]
    assert cli.main(["verify", path]) == 1  # a kernel runs on it
    assert "%timetravel verify" in capsys.readouterr().err
    notebook.manager.shutdown_kernel()
    assert cli.main(["verify", path, "one"]) == 0
    assert "held" in capsys.readouterr().out
    assert cli.main(["restore", path, "one"]) == 0
    again = start_notebook("--Supervisor.durability=manual", **document)
    cell = again.run("x")
    assert cell.result == "1" and "restored #2" in cell.text("stderr")
