"""%restore and its kin: what comes back, what is said, and what a failure leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from tests.conftest import UNTIL_GO
from tests.session_processes import below, frozen_of
from tests.waiting import until


def test_memory_and_files_go_back_together_and_undo_goes_forward(notebook):
    notebook.run("x = [1]\nopen('a', 'w').write('A')")
    notebook.run("x.append(2); y = 1; open('a', 'w').write('B'); open('b', 'w').write('new')")
    report = notebook.run("%restore 1").out
    assert report.startswith("restored #1") and "2 files" in report and "--undo" in report
    check = "import os; print(x, 'y' in dir(), open('a').read(), os.path.exists('b'))"
    assert notebook.run(check).out == "[1] False A False"
    notebook.run("%restore 2")
    assert notebook.run(check).out == "[1, 2] True B True"


def test_writes_through_a_mapping_without_a_checkpoint_in_between(notebook):
    """stat(2) shows nothing of most of them, nor does inotify; a child process writes too."""
    notebook.run("%timetravel config auto=off")
    notebook.run(
        "import mmap, os\n"
        "def made(name):\n"
        "    with open(name, 'wb') as f: f.write(b'0000' * 2048)\n"
        "    with open(name, 'r+b') as f: return mmap.mmap(f.fileno(), 0)\n"
        "m, n = made('mine'), made('theirs')\n"
        "m[:4] = b'1111'"
    )
    write = "import mmap, sys; f = open('theirs', 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
    write += "for line in sys.stdin: m[:4] = line[:4].encode(); print('ok', flush=True)"
    notebook.run(
        "n.close(); import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {write!r}], stdin=-1, stdout=-1)\n"
        "def tell(text):\n"
        "    child.stdin.write(text + b'\\n'); child.stdin.flush()\n"
        "    assert child.stdout.readline() == b'ok\\n'\n"
        "tell(b'1111')"
    )
    look = "print(*[open(name, 'rb').read(4).decode() for name in ('mine', 'theirs')])"
    made = notebook.run("%checkpoint").out.split()[1].strip("#")
    notebook.run("m[:4] = b'2222'; tell(b'2222')")
    assert notebook.run(look).out == "2222 2222"
    assert "2 files" in notebook.run(f"%restore {made}").out
    assert notebook.run(look).out == "1111 1111"
    for text in ("3333", "4444"):
        notebook.run(f"m[:4] = b'{text}'")
        assert "1 file" in notebook.run(f"%restore {made}").out
        assert notebook.run(look).out == "1111 1111"


def test_a_command_while_the_kernel_starts(notebook):
    notebook.run("x = 1")
    for command in ("status", "checkpoint", "list"):
        notebook.manager.restart_kernel(now=True)
        assert notebook.command(command)  # it waits until there is something to answer
        notebook.client.wait_for_ready(timeout=60)


def test_mapped_files_whose_names_read_like_something_else(notebook):
    """A line end in a name is ``\\012`` in /proc, and so are these four characters."""
    names = ["a b", "line\nend", "line\\012end", "gone (deleted)", "two\nof\nthem (deleted)"]
    notebook.run(
        "import mmap, os\n"
        "def made(name):\n"
        "    with open(name, 'wb') as f: f.write(b'0000' * 2048)\n"
        "    with open(name, 'r+b') as f: return mmap.mmap(f.fileno(), 0)\n"
        f"maps = {{name: made(name) for name in {names!r}}}\n"
        "def put(text):\n"
        "    for each in maps.values(): each[:4] = text\n"
        "put(b'1111')"
    )
    made = notebook.run("%checkpoint").out.split()[1].strip("#")
    notebook.run("put(b'2222')")
    assert "warning" not in notebook.run(f"%restore {made}").out
    notebook.run("assert {bytes(each[:4]) for each in maps.values()} == {b'1111'}")
    # they are mapped again, not copies of what was mapped
    notebook.run("put(b'3333')")
    look = "print({open(name, 'rb').read(4) for name in maps})"
    assert notebook.run(look).out == "{b'3333'}"


def test_a_workspace_that_cannot_be_read_is_named(notebook):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    notebook.run("import os; x = 1")
    notebook.head()
    notebook.run("where = os.getcwd(); os.chmod(where, 0); x = 2")
    error = notebook.run("%restore 1", ok=False).error
    assert str(notebook.cwd) in error and "Nothing was changed" in error
    assert "%restore 1 --only process" in error
    notebook.run("assert x == 2; os.chmod(where, 0o700)")
    assert "restored #1" in notebook.run("%restore 1").out


def test_undo_of_undo(notebook):
    notebook.cells("x = 1", "x = 2", "%restore 1")
    assert notebook.run("x").result == "1"
    notebook.run("%restore 2")
    notebook.run("%restore --undo")
    assert notebook.run("x").result == "1"
    notebook.run("%restore 2")
    assert notebook.run("x").result == "2"
    notebook.run("%restore --undo")
    notebook.run("%restore --undo")
    assert notebook.run("x").result == "2"


def test_the_same_checkpoint_a_second_and_a_hundredth_time(notebook):
    notebook.run(
        "import threading, time\nx = []\ne = threading.Event()\n"
        "t = threading.Thread(target=e.wait); t.start()"
    )
    tids = notebook.run("sorted(__import__('os').listdir('/proc/self/task'))", silent=False).result
    keeps_ids = notebook.command("status")["engines"]["sandbox"] == "namespaces"
    for turn in range(100):
        notebook.command("restore", checkpoint=1)
        if turn % 20 == 0:
            assert notebook.run("x.append(1); print(x, t.is_alive())").out == "[1] True"
            now = notebook.run("sorted(__import__('os').listdir('/proc/self/task'))").result
            assert now == tids or not keeps_ids
    assert notebook.run("e.set(); t.join(5); print(t.is_alive())").out == "False"


def test_branches(notebook):
    notebook.cells("x = 'base'", "x += ' left'", "%restore 1", "x += ' right'")
    records = {c["number"]: c for c in notebook.command("list")["checkpoints"]}
    assert records[4]["parent"] == records[1]["id"] == records[2]["parent"]
    notebook.run("%restore 2")
    assert notebook.run("x").result == "'base left'"
    notebook.run("%restore 4")
    assert notebook.run("x").result == "'base right'"


def test_labels_comments_relative_numbers_and_unknown_ones(notebook):
    notebook.run("x = 1\n%checkpoint before the join")
    notebook.run("x = 2")
    notebook.run("x = 3")
    notebook.run('%restore "before the join"')
    assert notebook.run("x").result == "1"
    notebook.run("x = 5")
    notebook.run("x = 6")
    notebook.run("%restore -2")
    assert notebook.run("x").result == "5"
    before = notebook.command("list")["checkpoints"]
    failed = notebook.run("%restore 999", ok=False)
    assert failed.status == "error" and "UnknownCheckpoint" in failed.error
    assert notebook.run("x").result == "5"
    assert len(notebook.command("list")["checkpoints"]) <= len(before) + 2


def test_a_checkpoint_in_the_middle_of_a_cell(notebook):
    cell = notebook.run("x = 1\n%checkpoint middle\nx = 2\nprint('rest', x)")
    assert cell.out.splitlines()[-1] == "rest 2"
    notebook.run("x = 3")
    restore = notebook.run("%restore middle")
    assert "rest 2" not in restore.text()
    cell = notebook.run("print(x)")
    assert cell.out == "1"


def test_lines_after_a_restore_do_not_run(notebook):
    notebook.run("x = 1")
    cell = notebook.run("x = 2\n%restore 1\nprint('no')\nx = 7")
    assert "no" not in cell.out.splitlines()
    assert notebook.run("x").result == "1"
    cell = notebook.run(
        "try:\n    get_ipython().run_line_magic('restore', '1')\nexcept Exception:\n    x = 8"
    )
    assert notebook.run("x").result == "1"


BACK = "get_ipython().run_line_magic('restore', '1')"


@pytest.mark.parametrize(
    "event", ["pre_execute", "pre_run_cell", "post_run_cell", "post_execute", "transformer"]
)
@pytest.mark.parametrize("cell", ["y = 2", "import asyncio; await asyncio.sleep(0); y = 2"])
def test_a_restore_that_is_asked_for_around_a_cell(notebook, event, cell):
    """As a hook does that takes back every cell that failed."""
    register = f"ip.events.register({event!r}, back)"
    if event == "transformer":
        register = "ip.input_transformers_cleanup.append(back)"
    notebook.run("y = 1")
    hook = f"def back(*args):\n    {BACK}\nip = get_ipython()\n"
    notebook.run(hook + "y = 3")
    last = notebook.wait(notebook.send(f"{register}"))  # some hooks run after this very cell
    if not last.out.startswith("restored #1"):
        last = notebook.run(cell)
    assert last.out.startswith("restored #1")
    assert notebook.run("print(y, 'back' in dir())").out == "1 False"


def test_a_restore_in_user_expressions(notebook):
    notebook.run("y = 1")
    cell = notebook.run("y = 2", user_expressions={"back": BACK})
    assert cell.out.startswith("restored #1")
    assert notebook.run("print(y)").out == "1"


def test_a_restore_in_a_callback_is_refused(notebook):
    notebook.run(
        "def target(comm, message):\n"
        "    @comm.on_msg\n"
        "    def handle(message): get_ipython().run_line_magic('restore', '1')\n"
        "get_ipython().kernel.comm_manager.register_target('t', target)\nv = 1"
    )
    notebook.run("v = 2")
    session, shell = notebook.client.session, notebook.client.shell_channel
    shell.send(session.msg("comm_open", {"comm_id": "c", "target_name": "t", "data": {}}))
    shell.send(session.msg("comm_msg", {"comm_id": "c", "data": {}}))
    said = notebook.until_said("Nothing was changed")
    assert "RestoreRefused: The session can go back in a cell only" in said
    assert notebook.run("v").result == "2"


def test_only_process_and_only_files(notebook):
    notebook.run("x = 1; open('f', 'w').write('1')")
    notebook.run("x = 2; open('f', 'w').write('2')")
    notebook.run("%restore 1 --only files")
    assert notebook.run("print(x, open('f').read())").out == "2 1"
    notebook.run("%restore 2")
    notebook.run("%restore 1 --only process")
    assert notebook.run("print(x, open('f').read())").out == "1 2"


def test_dry_run_changes_nothing_and_names_what_would_change(notebook):
    notebook.run("x = 1; open('f', 'w').write('1')")
    notebook.run("x = 'text'; z = 1; open('f', 'w').write('22'); open('g', 'w').write('')")
    text = notebook.run("%restore 1 --dry-run").out
    assert all(part in text for part in ("x", "z", "f", "g", "Nothing was changed"))
    assert notebook.run("print(x, z, open('f').read())").out == "text 1 22"


def test_delete_pin_label_and_timeline(notebook):
    notebook.cells("x = 1", "x = 2", "x = 3")
    notebook.run("%checkpoint --pin 1")
    assert notebook.command("get", checkpoint=1)["checkpoint"]["pinned"]
    assert notebook.run("%checkpoint --delete 1", ok=False).status == "error"
    notebook.run("%checkpoint --delete 2")
    assert 2 not in [c["number"] for c in notebook.command("list")["checkpoints"]]
    assert notebook.refused("restore", checkpoint=2)["ename"] == "UnknownCheckpoint"
    tree = notebook.run("%timeline")
    assert "#1" in tree.text() or any(
        "#1" in m["content"]["data"]["text/plain"] for m in tree.of_type("display_data")
    )
    notebook.run("%restore 1")
    assert notebook.run("x").result == "1"


@pytest.mark.parametrize(
    "fatal, how",
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os._exit(3)", "code 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_the_executor_dies_and_the_session_goes_on(notebook, fatal, how):
    notebook.run("x = 41")
    notebook.run("x += 1; open('kept', 'w').write('1')")
    queued = notebook.send_queue(f"{UNTIL_GO}open('lost', 'w').write('half'); x = 0\n{fatal}", "x")
    cell = notebook.wait(queued[0])
    assert cell.error.startswith("ExecutorDied") and how in cell.error
    assert "#2" in cell.error
    assert notebook.wait(queued[1]).status == "aborted"
    assert notebook.manager.is_alive()
    cell = notebook.run("import os; print(x, os.path.exists('kept'), os.path.exists('lost'))")
    assert cell.out == "42 True False"


def test_exit_gives_a_fresh_process_and_keeps_the_timeline(notebook):
    notebook.run("x = 41")
    queued = [notebook.send("exit"), notebook.send("print('x' in dir())")]
    cell = notebook.wait(queued[0])
    assert cell.status == "ok" and "--undo" in cell.text("stderr")
    assert notebook.wait(queued[1]).out == "False"
    notebook.run("%restore --undo")
    assert notebook.run("x").result == "41"


def test_a_shutdown_from_a_cell_gives_a_fresh_process(notebook):
    """What people write into a cell that is to restart its kernel."""
    for _ in range(2):
        notebook.run("x = 1")
        notebook.run("import IPython; IPython.Application.instance().kernel.do_shutdown(True)")
        assert notebook.run("print('x' in dir())").out == "False"
        notebook.run("%restore --undo")
        assert notebook.run("print('x' in dir())").out == "True"


def test_what_a_dead_cell_wrote_can_be_had_again(notebook):
    notebook.run("x = 1")
    cell = notebook.run("open('lost', 'w').write('half')\nimport os; os._exit(1)", ok=False)
    number = cell.error.partition("%restore ")[2].partition(" ")[0]
    notebook.run(f"%restore {number} --only files")
    assert notebook.run("open('lost').read()").result == "'half'"


def test_death_can_mean_a_fresh_process_or_keep_the_files(start_notebook):
    notebook = start_notebook("--Supervisor.on_death=restart")
    notebook.run("x = 1")
    assert "fresh" in notebook.run("import os; os._exit(1)", ok=False).error
    assert notebook.run("'x' in dir()").result == "False"
    notebook = start_notebook("--Supervisor.files_on_death=keep")
    notebook.run("x = 1")
    notebook.run("open('w', 'w').write('1')\nimport os; os._exit(1)", ok=False)
    assert notebook.run("print(x, open('w').read())").out == "1 1"


def test_out_of_memory_takes_a_frozen_process_first(notebook):
    notebook.run("x = 1")
    notebook.head()
    frozen_of(notebook.pid, least=2)

    def path(seen):
        return f"/proc/{seen.process.pid}/oom_score_adj"

    def scores():
        found = {True: set(), False: set()}
        for seen in below(notebook.pid):
            with contextlib.suppress(OSError), open(path(seen)) as file:
                found[seen.name == "tt-frozen"].add(int(file.read()))
        return found[True] == {1000} and 0 in found[False] and 1000 not in found[False]

    until(scores)  # another one that is being made has its score before it has its name


def test_a_frozen_process_that_is_killed_is_no_checkpoint_any_more(start_notebook):
    notebook = start_notebook("--Supervisor.differences=0")
    notebook.cells("x = 1", "x = 2")
    notebook.head()
    for process in frozen_of(notebook.pid, least=3):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def left():
        captures = notebook.command("get", checkpoint=1)["checkpoint"]["captures"]
        return [c for c in captures if c["kind"] == "process" and c["state"] == "ready"]

    end = time.monotonic() + 60
    while left():
        assert time.monotonic() < end
        time.sleep(0.05)
    refused = notebook.refused("restore", checkpoint=1)
    assert refused["ename"] == "RestoreRefused"
    assert notebook.run("x").result == "2"


@pytest.mark.parametrize("place", ["before safety", "stopped", "files restored"])
def test_a_failure_in_the_middle_leaves_the_state_before(start_notebook, place):
    notebook = start_notebook(env={"TIMETRAVEL_FAULT": place})
    notebook.run("x = 1; open('f', 'w').write('1')")
    notebook.run("x = 2; open('f', 'w').write('2'); open('g', 'w').write('g')")
    failed = notebook.run("%restore 1", ok=False)
    assert failed.status == "error" and "injected" in failed.error
    assert notebook.run("print(x, open('f').read(), open('g').read())").out == "2 2 g"
    notebook.run("%restore 1")
    assert notebook.run("print(x, open('f').read())").out == "1 1"


@pytest.mark.parametrize("place", ["before safety", "stopped", "files restored"])
def test_the_supervisor_is_killed_in_the_middle(start_notebook, place):
    notebook = start_notebook(env={"TIMETRAVEL_FAULT": f"{place}:kill"})
    notebook.run("x = 1; open('f', 'w').write('1')")
    notebook.run("x = 2; open('f', 'w').write('2')")
    family = psutil.Process(notebook.pid).children(recursive=True)
    notebook.send("%restore 1")
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert (notebook.cwd / "f").read_text() in ("1", "2")
    again = start_notebook(cwd=notebook.cwd)
    assert again.run("print(open('f').read())").out in ("1", "2")


@pytest.mark.root
def test_a_file_that_cannot_be_written_refuses_the_restore(notebook, ability):
    notebook.run("x = 1; open('keep.txt', 'w').write('1')")
    notebook.run("x = 2; open('keep.txt', 'w').write('2'); open('new.txt', 'w').write('new')")
    target = notebook.cwd / "keep.txt"
    ability("chattr +i", os.geteuid() == 0 and os.system(f"chattr +i '{target}' 2>/dev/null") == 0)
    try:
        failed = notebook.run("%restore 1", ok=False)
        assert failed.status == "error" and "keep.txt" in failed.error
        cell = notebook.run("print(x, open('keep.txt').read(), open('new.txt').read())")
        assert cell.out == "2 2 new"
    finally:
        os.system(f"chattr -i '{target}'")
    notebook.run("%restore 1")
    assert notebook.run("print(x, open('keep.txt').read())").out == "1 1"


def test_a_restore_by_another_client_interrupts_the_cell(notebook):
    notebook.run("x = 1")
    msg_id = notebook.send("x = 2\nimport time\nprint('in')\ntime.sleep(60)")
    notebook.until_printed(msg_id)
    result = notebook.command("restore", checkpoint=1)
    assert result["text"].startswith("restored #1")
    assert notebook.wait(msg_id).reply["ename"] == "KeyboardInterrupt"
    assert notebook.run("x").result == "1"


def test_a_cell_that_ignores_interrupts(notebook):
    notebook.run("x = 1")
    msg_id = notebook.send(
        "import time\nx = 2\nwhile True:\n"
        "    try: print('in'); time.sleep(60)\n    except KeyboardInterrupt: pass"
    )
    notebook.until_printed(msg_id)
    assert notebook.refused("restore", checkpoint=1)["ename"] == "RestoreRefused"
    notebook.command("restore", checkpoint=1, force=True)
    assert notebook.wait(msg_id).error.startswith("SessionRestored")
    assert notebook.run("x").result == "1"


def test_policies(start_notebook):
    notebook = start_notebook("--Supervisor.auto=changed")
    notebook.cells("x = 1", "x", "print(x)", "# nothing", "x.bit_length()")
    numbers = [c["code"] for c in notebook.command("list")["checkpoints"]]
    assert numbers == ["", "x = 1", "x.bit_length()"]
    notebook.run("%timetravel config auto=off")
    notebook.run("x = 2")
    notebook.head()
    assert len(notebook.command("list")["checkpoints"]) in (3, 4)
    assert notebook.refused("config", set={"auto": "sometimes"})["ename"] == "BadRequest"


def test_bad_requests(notebook):
    assert notebook.refused("no such command")["ename"] == "BadRequest"
    assert notebook.refused("restore", nonsense=1)["ename"] == "BadRequest"
    assert notebook.refused("restore", checkpoint=0, only="half")["ename"] == "BadRequest"
    reply = notebook.control("timetravel_request", {"version": 99, "command": "list"})
    assert reply["ename"] == "BadRequest"
    assert notebook.control("timetravel_request", {})["status"] == "error"


def test_environment_cwd_umask_and_handlers(notebook):
    notebook.run(
        "import os, signal, warnings\nos.mkdir('sub'); os.chdir('sub'); os.umask(0o027)\n"
        "os.environ['TT'] = '1'\n"
        "signal.signal(signal.SIGUSR1, lambda *a: hits.append(1)); hits = []"
    )
    notebook.run(
        "os.chdir('..'); os.umask(0o022); os.environ['TT'] = '2'; os.rmdir('sub')\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)"
    )
    notebook.run("%restore 1")
    cell = notebook.run(
        "os.kill(os.getpid(), signal.SIGUSR1)\nold = os.umask(0)\n"
        "print(os.path.basename(os.getcwd()), oct(old), os.environ['TT'], hits)"
    )
    assert cell.out == "sub 0o27 1 [1]"


def test_asyncio_tasks_and_timers_go_on(notebook):
    notebook.run(
        "import asyncio\nn = 0\nfired = []\n"
        "async def tick():\n    global n\n    while True:\n"
        "        n += 1; await asyncio.sleep(.02)\n"
        "task = asyncio.ensure_future(tick())\n"
        "asyncio.get_running_loop().call_later(0.8, fired.append, 1)",
    )
    notebook.run("task.cancel()\nwhile not fired: await asyncio.sleep(.02)")
    notebook.run("%restore 1")
    cell = notebook.run(
        "a = n\nwhile n == a or not fired: await asyncio.sleep(.02)\n"
        "print(n > a, fired, task.done())"
    )
    assert cell.out == "True [1] False"


def test_redirected_descriptors_and_closed_ones(notebook):
    notebook.run("import os\nlog = open('log', 'w'); saved = os.dup(1); os.dup2(log.fileno(), 1)")
    notebook.run("os.write(1, b'first\\n'); print('python text')")
    notebook.run("%restore 1")
    cell = notebook.run("os.write(1, b'again\\n'); os.dup2(saved, 1); os.write(1, b'back\\n')")
    assert "back" in cell.text()
    assert notebook.run("open('log').read()").result == "'again\\n'"


def test_a_file_locked_by_a_notebook_is_free_when_it_closes_it(notebook):
    notebook.run("import fcntl\nf = open('l', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)")
    notebook.run("f.close()")
    other = (
        "import fcntl, sys\nf = open('l', 'w')\n"
        "try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "except OSError: print('locked')"
    )
    probe = (
        f"import subprocess, sys; command = [sys.executable, '-c', {other!r}]\n"
        "print(subprocess.run(command, capture_output=True, text=True).stdout.strip())"
    )
    assert notebook.run(probe).out == "free"
    notebook.run("%restore 1")
    assert notebook.run(probe).out == "locked"


def test_an_hdf5_file_is_open_and_locked_as_it_was(notebook):
    pytest.importorskip("h5py")
    other = (
        "import h5py\n"
        "try: h5py.File('a.h5', 'r+'); print('free')\n"
        "except OSError as error: print('locked' if 'lock' in str(error) else error)"
    )
    notebook.run(
        "import h5py, subprocess, sys\n"
        "f = h5py.File('a.h5', 'w'); f['x'] = [1, 2, 3]; f.flush()\n"
        f"command = [sys.executable, '-c', {other!r}]\n"
        "def probe(): return subprocess.run(command, capture_output=True, text=True).stdout.strip()"
    )
    notebook.run("before = probe(); f['y'] = [4]; f.close()")
    assert notebook.run("print(before, probe())").out == "locked free"
    for n in range(2):
        notebook.run("%restore 1")
        found = notebook.run("print(f['x'][:].tolist(), 'y' in f, probe())").out
        assert found == "[1, 2, 3] False locked"
        notebook.run(f"f['z{n}'] = [{n}]; f.close()")
        assert notebook.run("print(sorted(h5py.File('a.h5')))").out == f"['x', 'z{n}']"


def test_a_database_that_is_open_can_be_written_after_a_restore(notebook):
    notebook.run(
        "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t (n integer)')\n"
        "def add(n): c.execute('insert into t values (?)', (n,)); c.commit()\n"
        "def rows(): return [n for (n,) in c.execute('select n from t')]\nadd(1)"
    )
    notebook.run("add(2)")
    for n in range(3, 6):
        notebook.run("%restore 1")
        assert notebook.run(f"add({n}); print(rows())").out == f"[1, {n}]"
        notebook.run("%restore --undo")
        assert notebook.run(f"add({n}); print(rows()[-1])").out == str(n)


def test_two_hundred_threads(notebook):
    notebook.run(
        "import threading, time\ncount = [0] * 200\n"
        "def work(i):\n    while True: count[i] += 1; time.sleep(.05)\n"
        "threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(200)]\n"
        "[t.start() for t in threads]\nwhile not all(count): time.sleep(.05)"
    )
    notebook.run("count = [0] * 200")
    report = notebook.run("%restore 1").out
    assert "200 threads" in report or "201 threads" in report
    cell = notebook.run(
        "a = list(count)\n"
        "while not all(y > x for x, y in zip(a, count)): time.sleep(.05)\n"
        "print(all(y > x for x, y in zip(a, count)), sum(t.is_alive() for t in threads))"
    )
    assert cell.out == "True 200"


def test_the_supervisor_survives_sigterm_by_shutting_down(notebook):
    family = psutil.Process(notebook.pid).children(recursive=True)
    os.kill(notebook.pid, signal.SIGTERM)
    assert not psutil.wait_procs(family, timeout=60)[1]
