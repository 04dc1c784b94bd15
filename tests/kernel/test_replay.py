"""%replay: back to a checkpoint, then the cells that had run after it, once more."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.waiting import PATIENCE


@pytest.fixture
def flag():
    """The path of a file in /tmp, which is not rolled back; it is not there at first."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield f"{directory}/flag"


def test_cells_run_again_in_order_under_the_cell_that_asks(notebook):
    notebook.cells("n = [0]", "n.append(1)\nprint('one', len(n))", "n.append(2)\nlen(n)")
    notebook.run("n[0] = 'kept?'")
    cell = notebook.run("print('begin')\n%replay 1 --until 3\nprint('never')")
    out = cell.text()
    assert out.startswith("begin\n── replay 1/2: #2 n.append(1)\none 2\n── replay 2/2: #3")
    assert "replayed 2 cells from #1, all as before" in out and "never" not in out
    assert cell.result == "3"
    assert notebook.run("n").result == "[0, 1, 2]"
    # each has left its checkpoint, on a branch of its own
    notebook.head()
    line = notebook.command("cells")["cells"]
    assert [c["source"] for c in line[:3]] == [
        "n = [0]",
        "n.append(1)\nprint('one', len(n))",
        "n.append(2)\nlen(n)",
    ]
    assert line[1]["number"] > 4 and line[1]["execution_count"] == 2


def test_the_page_sees_one_cell(notebook):
    notebook.cells("x = 1", "y = 2")
    cell = notebook.run("%replay 0")
    states = [m["content"]["execution_state"] for m in cell.of_type("status")]
    assert states == ["busy", "idle"] and len(cell.of_type("execute_input")) == 1
    assert not [m for m in notebook.settle() if m["msg_type"] != "stream"]


def test_dry_run_names_cells_and_effects_and_runs_nothing(notebook):
    notebook.cells(
        "x = 1",
        "import socket\nsocket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.7', 9))\nx += 1",
        "x += 10",
    )
    out = notebook.run("%replay 1 --dry-run").out
    assert out.startswith("replaying from #1 would run 2 cells again:\n  #2  import socket")
    assert "may happen again: connected to 192.0.2.7:9 (cell #2)" in out
    assert notebook.run("x").result == "12"


def test_skip_and_time_travel_are_left_out(notebook):
    notebook.cells("x = [0]", "x.append(1)", "x.append(2)", "x.append(3)", "%checkpoint here")
    notebook.run("x.append(4)\n%restore -1")
    notebook.run("%restore --undo")
    assert notebook.run("x").result == "[0, 1, 2, 3, 4]"
    out = notebook.run("%replay 1 --skip 2,4").out
    assert "%restore" not in out.partition("replayed")[0] and "%checkpoint" not in out
    assert notebook.run("x").result == "[0, 2, 4]"
    notebook.run("%replay 1 --skip 2-3 --until 4")
    assert notebook.run("x").result == "[0, 3]"


def test_it_stops_at_a_difference_if_asked(notebook):
    notebook.cells("import time", "object()", "time.time_ns()", "after = 1")
    result = notebook.command("replay", checkpoint=1, stop_on_difference=True)
    # an address in a result is no difference, a time is
    assert [c["difference"] is None for c in result["cells"]] == [True, False]
    assert result["stopped"] == "difference"
    assert [row["code"] for row in result["not_run"]] == ["after = 1"]
    assert "stopped at the first difference; 1 cell not run" in result["text"]
    assert notebook.run("'after' in dir()").result == "False"
    result = notebook.command("replay", checkpoint=1, until=4)
    assert result["stopped"] is None and len(result["cells"]) == 3


def test_an_error_that_was_there_before_is_no_difference(notebook):
    notebook.run("x = 1")
    notebook.run("1 / 0", ok=False)
    notebook.run("y = 1")
    cell = notebook.run("%replay 1 --stop-on-difference")
    assert "replayed 2 cells from #1, all as before" in cell.out
    assert cell.error.startswith("ZeroDivisionError")
    assert notebook.run("y").result == "1"


def test_an_interrupt_stops_it_and_the_queue_goes_on(notebook, flag):
    notebook.run("import os")
    notebook.run(f"print('here')\nwhile os.path.exists({flag!r}): pass")
    notebook.run("y = 1")
    Path(flag).touch()  # outside of what goes back, so the second run is an endless one
    asking = notebook.send("%replay 1")
    waiting = notebook.send("'next', 'y' in dir()")
    while True:
        message = notebook.client.get_iopub_msg(timeout=PATIENCE)
        notebook.unclaimed.append(message)
        if "here\n" in message["content"].get("text", ""):
            break
    assert notebook.refused("restore", checkpoint=1)["ename"] == "RestoreRefused"
    notebook.interrupt()
    cell = notebook.wait(asking)
    assert cell.status == "ok" and "stopped, since it was interrupted; 1 cell not run" in cell.out
    assert "ok before, KeyboardInterrupt now" in cell.out
    assert notebook.wait(waiting).result == "('next', False)"


def test_a_process_that_dies_stops_it(notebook, flag):
    notebook.cells("import os", "x = 1", f"if os.path.exists({flag!r}): os._exit(3)", "z = 1")
    notebook.head()
    Path(flag).touch()
    cell = notebook.run("%replay 1")
    assert "stopped, since the process died; 1 cell not run" in cell.out
    assert cell.error.startswith("ExecutorDied")
    assert notebook.run("x, 'z' in dir()").result == "(1, False)"


def test_what_cannot_be_replayed_is_refused_before_anything_happens(notebook):
    notebook.cells("x = 1", "x = 2")
    head = notebook.head()
    assert notebook.refused("replay", checkpoint=2)["ename"] == "BadRequest"
    assert notebook.refused("replay", checkpoint=2, until=1)["ename"] == "BadRequest"
    assert notebook.refused("replay", checkpoint=77)["ename"] == "UnknownCheckpoint"
    assert notebook.refused("replay", checkpoint=1, skip="2")["ename"] == "BadRequest"
    assert notebook.command("status")["head"]["id"] == head["id"]


def test_a_client_replays_and_sees_progress(notebook):
    notebook.cells("x = 1", "x += 1", "x")
    notebook.command("subscribe")
    result = notebook.command("replay", checkpoint=1)
    assert [c["outcome"] for c in result["cells"]] == ["ok", "ok"]
    assert result["restored"]["safety"]["reason"] == "safety"
    notebook.until(lambda m: m["content"].get("event") == "replay_finished")
    events = [m["content"] for m in notebook.settle() if m["msg_type"] == "timetravel_event"]
    # others come in between, and after it: checkpoints are written in the background
    events = [e for e in events if e["event"] in ("replay_progress", "replay_finished")]
    steps = [(e["step"], e["of"]) for e in events[:-1]]
    assert steps == [(1, 2), (2, 2)]
    assert events[-1]["event"] == "replay_finished"
