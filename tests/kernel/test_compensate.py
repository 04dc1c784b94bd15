"""Undos that cells register: offered by a restore, run newest first, never twice."""

from __future__ import annotations

SETUP = """
from jupyter_timetravel import compensate
def undo(name, fail=False):
    if fail:
        raise ValueError(name)
    with open(LOG, "a") as log:
        log.write(name + "\\n")
"""


def setup(notebook, tmp_path_factory):
    """A log that does not go back with the workspace."""
    log = tmp_path_factory.mktemp("log") / "log"
    notebook.run(f"LOG = {str(log)!r}" + SETUP)
    return log


def read(log):
    """What was undone, in order."""
    return log.read_text().split() if log.exists() else []


def start(start_notebook):
    """Files outside of the workspace are the host's own here, as another machine would be."""
    return start_notebook("--Supervisor.environment=off")


def test_they_run_newest_first_before_the_restore(start_notebook, tmp_path_factory):
    notebook = start(start_notebook)
    log = setup(notebook, tmp_path_factory)
    notebook.run("x = 1\ncompensate(undo, 'first')")
    notebook.run("compensate(undo, 'second')\ncompensate(undo, name='third')")
    dry = notebook.run("%restore 1 --dry-run").out
    assert "3 compensations not run: undo(name='third'), undo('second'), undo('first')" in dry
    assert "--compensate runs them first" in dry and read(log) == []
    told = notebook.run("print('before')\n%restore 1 --compensate\nprint('never')").out
    assert read(log) == ["third", "second", "first"]
    assert told.startswith("before\nrestored #1") and "never" not in told
    assert "compensated: undo('first') (cell #2)" in told
    assert notebook.run("'x' in dir()").result == "False"


def test_a_restore_without_them_says_how_to_run_them_and_that_works(
    start_notebook, tmp_path_factory
):
    notebook = start(start_notebook)
    log = setup(notebook, tmp_path_factory)
    notebook.run("compensate(undo, 'one')")
    told = notebook.run("%restore 1").out
    assert "%restore --undo, then %restore 1 --compensate runs them" in told
    notebook.run("%restore --undo")
    notebook.run("%restore 1 --compensate")
    assert read(log) == ["one"]


def test_one_that_fails_leaves_the_session_where_it_was(start_notebook, tmp_path_factory):
    notebook = start(start_notebook)
    log = setup(notebook, tmp_path_factory)
    notebook.run("x = 1\ncompensate(undo, 'old')")
    notebook.run("compensate(undo, 'bad', fail=True)")
    notebook.run("compensate(undo, 'new')")
    cell = notebook.run("%restore 1 --compensate", ok=False)
    assert cell.reply["ename"] == "RestoreRefused"
    assert "undo('bad', fail=True) failed (ValueError: bad)" in cell.reply["evalue"]
    assert "ValueError" in cell.of_type("error")[0]["content"]["ename"]  # with its traceback
    assert notebook.run("x").result == "1" and read(log) == ["new"]
    # what went well is not run again, also in a process in which it has not run yet
    notebook.run("%restore 4")
    notebook.run("def undo(name, fail=False):\n    open(LOG, 'a').write(name + ' again\\n')")
    notebook.refused("restore", checkpoint=1, compensate=True)
    assert read(log) == ["new"]


def test_a_client_can_ask_for_them_and_sees_how_each_went(start_notebook, tmp_path_factory):
    notebook = start(start_notebook)
    log = setup(notebook, tmp_path_factory)
    notebook.run("compensate(undo, 'one')")
    result = notebook.command("restore", checkpoint=1, compensate=True)
    (one,) = result["compensations"]
    assert (one["text"], one["outcome"], one["cell"]) == ("undo('one')", "ok", "#2")
    assert read(log) == ["one"]
    notebook.command("restore", undo=True)
    assert notebook.command("restore", checkpoint=1, compensate=True)["compensations"] == [one]
    assert read(log) == ["one"]


def test_they_are_gone_with_their_process(start_notebook, tmp_path_factory):
    notebook = start(start_notebook)
    log = setup(notebook, tmp_path_factory)
    notebook.run("import os\ncompensate(undo, 'one')\nos._exit(1)", ok=False)
    # the cell is not part of the present, so there is nothing to be compensated
    assert notebook.command("restore", checkpoint=1, compensate=True)["compensations"] == []
    assert read(log) == []


def test_a_compensation_cannot_travel_itself(start_notebook, tmp_path_factory):
    notebook = start(start_notebook)
    setup(notebook, tmp_path_factory)
    notebook.run("compensate(get_ipython().run_line_magic, 'restore', '0')")
    cell = notebook.run("%restore 1 --compensate", ok=False)
    assert "being replayed cannot go back in time itself" in cell.reply["evalue"]
    assert notebook.run("undo.__name__").result == "'undo'"


def test_it_belongs_to_a_cell_and_wants_a_function(notebook):
    cell = notebook.run("from jupyter_timetravel import compensate\ncompensate(3)", ok=False)
    assert cell.reply["ename"] == "BadRequest"
    cell = notebook.run(
        "from jupyter_timetravel import compensate\ncompensate(print)", ok=False, silent=True
    )
    assert cell.reply["ename"] == "BadRequest"
    assert notebook.refused("restore", checkpoint=0, only="files", compensate=True)["ename"] == (
        "BadRequest"
    )
