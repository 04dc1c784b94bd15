"""IPython's history: the supervisor writes it, and everything works as in a stock kernel."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE

BUSY_S = 1.0
"""Seconds for which a write waits for a busy database (supervisor/history.py)."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The database that the fixtures' kernels use."""
    return tmp_path / "ipython" / "profile_default" / "history.sqlite"


def rows(database: Path, query: str = "SELECT session, line, source_raw FROM history") -> list:
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60)) as connection:
        return connection.execute(query).fetchall()


def eventually(found: Callable[[], object], wanted: object) -> None:
    end = time.monotonic() + PATIENCE
    while found() != wanted:
        assert time.monotonic() < end, found()
        time.sleep(0.02)


def configure(tmp_path: Path, text: str) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text(f"c = get_config()\n{text}\n")


def older(database: Path, *lines: str) -> None:
    """Make a database with one session, as IPython does."""
    from IPython.core.history import HistoryAccessor

    database.parent.mkdir(parents=True, exist_ok=True)
    accessor = HistoryAccessor(hist_file=str(database))
    with closing(accessor.db) as db, db:
        db.execute("INSERT INTO sessions VALUES (NULL, '2020-01-01 00:00:00', NULL, NULL, '')")
        for line, source in enumerate(lines, 1):
            db.execute("INSERT INTO history VALUES (1, ?, ?, ?)", (line, source, source))


def ask(notebook, **wanted):
    client = notebook.client
    msg_id = client.history(**wanted)
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == msg_id:
            content = reply["content"]
            assert content["status"] == "ok"
            return [
                (session, line, tuple(entry) if isinstance(entry, list) else entry)
                for session, line, entry in content["history"]
            ]


# What reaches the file


def test_lines_reach_the_database_with_raw_and_transformed_source(notebook, database):
    notebook.cells("a = 1", "%time 2\n")
    notebook.run("silent = 1", silent=True)
    notebook.run("unstored = 1", store_history=False)
    notebook.run("b = 2")
    notebook.run("1 +", ok=False)
    query = "SELECT session, line, source, source_raw FROM history ORDER BY line"
    eventually(
        lambda: rows(database, query),
        [
            (1, 1, "a = 1", "a = 1"),
            (1, 2, "get_ipython().run_line_magic('time', '2')", "%time 2"),
            (1, 3, "b = 2", "b = 2"),
            (1, 4, "1 +", "1 +"),
        ],
    )
    assert notebook.run("get_ipython().history_manager.session_number").result == "1"


def test_no_thread_of_the_kernel_writes_history(notebook):
    count = "import threading; [t.name for t in threading.enumerate()]"
    assert "History" not in notebook.run(count).result
    files = notebook.run(
        "import os; [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{n}')]"
    ).result
    assert "history.sqlite" not in files


def test_the_session_gets_its_end_and_its_count(notebook, database):
    notebook.cells("1", "2", "3")
    session = "SELECT session, end IS NOT NULL, num_cmds FROM sessions"
    eventually(lambda: rows(database, session), [(1, 0, None)])
    notebook.manager.shutdown_kernel()
    assert rows(database, session) == [(1, 1, 3)]


def test_an_exit_begins_another_session(notebook, database):
    notebook.run("a = 1")
    notebook.run("exit")
    notebook.run("b = 2")
    eventually(lambda: rows(database), [(1, 1, "a = 1"), (2, 1, "b = 2")])


def test_a_line_that_kills_the_process_is_there(notebook, database):
    notebook.run("a = 1")
    notebook.run("import os; os._exit(1)", ok=False)
    eventually(lambda: rows(database)[1:], [(1, 2, "import os; os._exit(1)")])


def test_after_a_restore_lines_go_under_another_session(notebook, database):
    notebook.cells("a = 1", "a = 2", "a = 3", "%restore 1", "a = 4", "%restore --undo", "a = 5")
    eventually(
        lambda: rows(database),
        [
            (1, 1, "a = 1"),
            (1, 2, "a = 2"),
            (1, 3, "a = 3"),
            (1, 4, "%restore 1"),
            (2, 2, "a = 4"),
            (2, 3, "%restore --undo"),
            (3, 5, "a = 5"),
        ],
    )
    assert notebook.run("get_ipython().history_manager.session_number").result == "3"
    ended = "SELECT session, end IS NOT NULL, num_cmds FROM sessions"
    eventually(lambda: rows(database, ended), [(1, 1, 4), (2, 1, 3), (3, 0, None)])


def test_a_restore_without_a_line_leaves_no_empty_session(notebook, database):
    notebook.cells("a = 1", "a = 2")
    notebook.command("restore", checkpoint=1)
    notebook.command("restore", checkpoint=2)
    notebook.manager.shutdown_kernel()
    assert rows(database, "SELECT session, num_cmds FROM sessions") == [(1, 2)]


def test_the_previous_session_is_the_one_before_also_after_a_restore(start_notebook, database):
    older(database, "old = 1")
    notebook = start_notebook()
    notebook.cells("a = 1", "a = 2")
    assert notebook.run("%history ~1/", store_history=False).out == "old = 1"
    notebook.command("restore", checkpoint=1)
    found = notebook.run("%history ~1/", store_history=False).out
    assert found == "a = 1\na = 2"
    assert notebook.run("%history", store_history=False).out == "a = 1"


def test_a_count_that_is_set_back_goes_to_another_session(notebook, database):
    notebook.cells("a = 1", "get_ipython().execution_count = 1", "b = 2")
    eventually(lambda: rows(database)[2:], [(2, 1, "b = 2")])
    notebook.run("%history -g zzz")
    assert notebook.run("get_ipython().history_manager.session_number").result == "2"


def test_outputs_if_wanted(start_notebook, tmp_path, database):
    configure(tmp_path, "c.HistoryManager.db_log_output = True")
    notebook = start_notebook()
    notebook.cells("6 * 7", "None")
    eventually(lambda: rows(database, "SELECT * FROM output_history"), [(1, 1, "42")])
    assert (1, 1, ("6 * 7", "42")) in ask(notebook, hist_access_type="tail", n=5, output=True)
    found = ask(notebook, hist_access_type="search", pattern="6*", output=True)
    assert found == [(1, 1, ("6 * 7", "42"))]


def test_a_cell_that_utf8_cannot_hold(notebook, database):
    notebook.run(r"get_ipython().history_manager.store_inputs(90, 'x = \ud800')")
    notebook.run("a = 1")
    eventually(lambda: rows(database)[1:], [(1, 90, "x = ?"), (1, 2, "a = 1")])


# Reading


def test_magics_find_lines_of_this_and_older_sessions(start_notebook, database):
    older(database, "old_one = 1", "old_two = 2")
    notebook = start_notebook()
    notebook.run("new_one = 3")
    found = notebook.run("%history -g *_one = *").out.split("\n")
    assert [line.strip() for line in found] == [
        "1/1: old_one = 1",
        "1: new_one = 3",
        "2: %history -g *_one = *",
    ]
    assert notebook.run("%history -l 2").out == "new_one = 3\n%history -g *_one = *"
    assert notebook.run("%history 1").out == "new_one = 3"
    assert notebook.run("%history ~1/2").out == "old_two = 2"
    found = notebook.run("%history -u -g old*").out.split("\n")
    assert [line.strip() for line in found[:2]] == ["1/1: old_one = 1", "1/2: old_two = 2"]
    assert notebook.run("In[1], _i1").result == "('new_one = 3', 'new_one = 3')"
    recall = notebook.run("%recall 1")
    assert recall.reply["payload"][0]["text"] == "new_one = 3"
    recall = notebook.run("%recall old_tw")
    assert recall.reply["payload"][0]["text"] == "old_two = 2"
    info = notebook.run("get_ipython().history_manager.get_session_info(-1)").result
    assert info == "(1, datetime.datetime(2020, 1, 1, 0, 0), None, None, '')"
    notebook.run("%logstart log.py")
    notebook.run("logged = 1")
    assert "new_one = 3" in (notebook.cwd / "log.py").read_text()
    assert "logged = 1" in (notebook.cwd / "log.py").read_text()


def test_requests_of_clients(start_notebook, database):
    older(database, "old_one = 1", "old_two = 2")
    notebook = start_notebook()
    notebook.cells("new_one = 3", "4")
    tail = ask(notebook, hist_access_type="tail", n=3)
    assert tail == [(1, 2, "old_two = 2"), (2, 1, "new_one = 3"), (2, 2, "4")]
    found = ask(notebook, hist_access_type="search", pattern="*one*", n=5)
    assert found == [(1, 1, "old_one = 1"), (2, 1, "new_one = 3")]
    found = ask(notebook, hist_access_type="search", pattern="*one*", unique=True)
    assert found == [(1, 1, "old_one = 1"), (2, 1, "new_one = 3")]
    here = ask(notebook, hist_access_type="range", session=0, start=1, stop=2)
    assert here == [(0, 1, "new_one = 3")]
    here = ask(notebook, hist_access_type="range", session=0, start=2, stop=3, output=True)
    assert here == [(0, 2, ("4", "4"))]
    before = ask(notebook, hist_access_type="range", session=-1, start=1, stop=None)
    assert before == [(1, 1, "old_one = 1"), (1, 2, "old_two = 2")]
    before = ask(notebook, hist_access_type="range", session=1, start=2, output=True)
    assert before == [(1, 2, ("old_two = 2", None))]


def test_thousands_of_lines(start_notebook, database):
    older(database, *(f"old_{n} = {n}" for n in range(2500)))
    notebook = start_notebook()
    found = ask(notebook, hist_access_type="search", pattern="old_*")
    assert [line for _, line, _ in found] == list(range(1, 2501))


def test_threads_and_forked_processes_read_the_file(start_notebook, database):
    older(database, "old = 1")
    notebook = start_notebook()
    notebook.run("seek = lambda: list(get_ipython().history_manager.search('old*'))")
    notebook.run(
        "import threading\nfound = []\n"
        "t = threading.Thread(target=lambda: found.append(seek())); t.start(); t.join()"
    )
    assert notebook.run("found").result == "[[(1, 1, 'old = 1')]]"
    notebook.run(
        "import os\nif os.fork() == 0:\n"
        "    os.write(1, str(seek()).encode()); os._exit(0)\nos.wait()[1]"
    )
    assert notebook.run("seek()").result == "[(1, 1, 'old = 1')]"


def test_what_writes_is_refused(notebook, database, tmp_path):
    notebook.run("db = get_ipython().history_manager.db")
    assert notebook.run("db.execute('SELECT count(*) FROM history').fetchone()").result == "(2,)"
    for statement in (
        "DELETE FROM history",
        f"ATTACH '{tmp_path}/other' AS other",
        f"VACUUM INTO '{tmp_path}/other'",
        "PRAGMA journal_mode = WAL",
    ):
        assert "Error" in notebook.run(f'db.execute("{statement}")', ok=False).error
    assert not (tmp_path / "other").exists()
    eventually(lambda: len(rows(database)) > 2, True)


def test_an_interrupt_while_history_is_read_strikes_afterwards(notebook, database):
    notebook.run("a = 1")
    id = notebook.send("print('in')\nwhile True: list(get_ipython().history_manager.get_tail(5))")
    notebook.until_printed(id)
    notebook.interrupt()
    assert notebook.wait(id).error.startswith("KeyboardInterrupt")
    assert notebook.run("a").result == "1"
    tail = ask(notebook, hist_access_type="tail", n=1)
    assert tail == [(1, 3, "a")]


def test_an_ipython_of_the_terminal_reads_it(notebook, database):
    notebook.cells("for_ipython = 1", "%restore 0", "for_ipython = 2")
    notebook.manager.shutdown_kernel()
    script = (
        "import sys; from IPython.terminal.ipapp import TerminalIPythonApp as A\n"
        "a = A.instance(); a.initialize(['--no-banner', '--simple-prompt'])\n"
        "a.shell.run_cell('%history -g for_*', store_history=True)\n"
        "a.shell.run_cell('%history ~1/', store_history=True)\n"
        "print(a.shell.history_manager.session_number)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    lines = [line.strip() for line in done.stdout.split("\n") if line.strip()]
    assert lines[:2] == ["1/1: for_ipython = 1", "2/1: for_ipython = 2"]
    assert lines[-2:] == ["for_ipython = 2", "3"]


# Where the database is, and what is wrong with it


def test_two_kernels_at_once(start_notebook, database):
    one, two = start_notebook(), start_notebook()
    number = "get_ipython().history_manager.session_number"
    # drawn with the first line that is written, or when it is asked for
    assert [k.run(number, store_history=False).result for k in (one, two)] == ["1", "2"]
    for n in range(5):
        ids = [(k, k.send(f"{name} = {n}")) for k, name in ((one, "one"), (two, "two"))]
        for kernel, id in ids:
            kernel.wait(id)
    one.run("%restore 3")  # after "one = 1"
    one.run("one = 5")
    eventually(lambda: (3, 3, "one = 5") in rows(database), True)
    found = two.run("%history -g one = 5").out
    assert found.split("\n")[0].strip() == "3/3: one = 5"

    def mine() -> list[str]:
        return [line for session, _, line in rows(database) if session == 2]

    eventually(mine, [f"two = {n}" for n in range(5)] + ["%history -g one = 5"])


def test_a_database_that_is_busy_keeps_lines_waiting_and_the_cell_does_not_wait(notebook, database):
    notebook.run("a = 1")
    eventually(lambda: len(rows(database)), 1)
    with closing(sqlite3.connect(database)) as other:
        other.execute("BEGIN IMMEDIATE")
        took = []
        for n in range(2, 22):
            started = time.monotonic()
            notebook.run(f"a = {n}")
            took.append(time.monotonic() - started)
        assert min(took) < BUSY_S, "each of them has waited for the database"
        assert notebook.run("list(get_ipython().history_manager.search('a = 1'))").result
        other.rollback()
    eventually(lambda: [line for _, _, line in rows(database)][:3], ["a = 1", "a = 2", "a = 3"])
    assert not list(database.parent.glob("*corrupt*"))


def test_a_shutdown_does_not_wait_for_a_busy_database(notebook, database):
    notebook.run("a = 1")
    eventually(lambda: len(rows(database)), 1)
    with closing(sqlite3.connect(database)) as other:
        other.execute("BEGIN EXCLUSIVE")
        notebook.run("a = 2")
        os.kill(notebook.pid, signal.SIGTERM)
        assert notebook.manager.provisioner.process.wait(timeout=PATIENCE) == 0  # not killed
        other.rollback()


def test_a_broken_database_is_moved_away_as_ipython_does(start_notebook, database):
    database.parent.mkdir(parents=True)
    database.write_bytes(b"this is no database at all\n" * 20)
    notebook = start_notebook()
    notebook.run("a = 1")
    eventually(lambda: (database.parent / "history-corrupt.sqlite").exists(), True)
    eventually(lambda: rows(database), [(1, 1, "a = 1")])
    assert notebook.run("%history -g a*").out.split("\n")[0].strip() == "1: a = 1"


def test_a_place_that_cannot_be_written(start_notebook, tmp_path):
    configure(tmp_path, "c.HistoryManager.hist_file = '/dev/null/history.sqlite'")
    notebook = start_notebook()
    notebook.cells("a = 1", "%restore 0", "a = 2")
    found = notebook.run("%history -g a = *").out.split("\n")
    assert [line.strip() for line in found[:2]] == ["1/1: a = 1", "1: a = 2"]
    assert ask(notebook, hist_access_type="tail", n=2)[0] == (2, 1, "a = 2")


def test_a_database_that_may_only_be_read(start_notebook, database):
    if os.getuid() == 0:
        pytest.skip("root may write")
    older(database, "old = 1")
    database.chmod(0o400)
    notebook = start_notebook()
    notebook.cells("a = 1", "a = 2")
    assert notebook.run("%history -g a = 1").out.split("\n")[0].strip() == "1: a = 1"
    assert rows(database) == [(1, 1, "old = 1")]


def test_in_memory_it_is_a_part_of_the_process(start_notebook, tmp_path, database):
    configure(tmp_path, "c.HistoryManager.hist_file = ':memory:'")
    notebook = start_notebook()
    notebook.cells("a = 1", "a = 2")
    assert notebook.run("%history -g a*").out.strip().startswith("1: a = 1\n   2: a = 2")
    notebook.run("%restore 1")
    assert ask(notebook, hist_access_type="tail", n=5) == [(1, 1, "a = 1")]
    assert not database.exists()


def test_switched_off(start_notebook, tmp_path, database):
    configure(tmp_path, "c.HistoryManager.enabled = False")
    notebook = start_notebook()
    notebook.cells("a = 1", "%restore 0", "a = 2")
    assert notebook.run("%history").out == "a = 2\n%history"
    assert ask(notebook, hist_access_type="tail", n=5) == []
    assert not database.exists()


def test_a_file_of_the_users_in_a_directory_that_is_not_there(start_notebook, tmp_path, database):
    other = tmp_path / "elsewhere" / "mine.sqlite"
    configure(tmp_path, f"c.HistoryManager.hist_file = {str(other)!r}")
    notebook = start_notebook()
    notebook.run("a = 1")
    eventually(lambda: rows(other), [(1, 1, "a = 1")])
    assert notebook.run("get_ipython().history_manager.hist_file").result == repr(str(other))
    assert not database.exists()


def test_it_may_be_written_rarely(start_notebook, tmp_path, database):
    configure(tmp_path, "c.HistoryManager.db_cache_size = 3")
    notebook = start_notebook()
    notebook.cells("a = 1", "a = 2")
    time.sleep(0.5)
    assert rows(database) == []
    assert len(ask(notebook, hist_access_type="tail", n=5)) == 2
    notebook.cells("a = 3", "a = 4", "%restore 1", "a = 5")
    notebook.manager.shutdown_kernel()
    assert [(s, n) for s, n, _ in rows(database)] == [(1, n) for n in range(1, 6)] + [(2, 2)]


def test_a_killed_supervisor_loses_what_was_not_written_yet(notebook, database):
    notebook.cells("a = 1", "a = 2")
    eventually(lambda: len(rows(database)), 2)
    psutil.Process(notebook.pid).send_signal(signal.SIGKILL)
    assert len(rows(database)) == 2
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_many_cells_at_once_and_restores_keep_every_line(notebook, database):
    ids = [notebook.send(f"a = {n}") for n in range(100)]
    for id in ids:
        notebook.wait(id)
    notebook.cells("%restore 50", "b = 1", "%restore 70", "b = 2")
    eventually(lambda: len(rows(database)), 104)
    found = rows(database)
    assert found[:100] == [(1, n + 1, f"a = {n}") for n in range(100)]
    assert found[100:] == [
        (1, 101, "%restore 50"),
        (2, 51, "b = 1"),
        (2, 52, "%restore 70"),
        (3, 71, "b = 2"),
    ]
