"""What went wrong once, when somebody tried to break it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kernel_runtime.supervisor.app import START_FAILED
from tests.conftest import ROOT, Manager
from tests.session_processes import executor_of, init_of


def test_the_executor_dies_while_it_is_being_moved(notebook):
    notebook.cells("x = 1", "x = 2")
    notebook.head()
    process = executor_of(notebook.pid)
    process.suspend()
    message = notebook.client.session.msg(
        "timetravel_request", {"version": 1, "command": "restore", "args": {"checkpoint": 1}}
    )
    notebook.client.control_channel.send(message)
    time.sleep(0.5)  # wherever the restore is by then
    process.kill()
    notebook.command("status")  # by then the cell is behind it: it is on another channel
    assert notebook.run("x in (1, 2)").result == "True"


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("sys.stdout = None", "AttributeError"),
        ("sys.stderr = open('f', 'w'); sys.stderr.close()", "ValueError"),
        ("get_ipython().events = None", "AttributeError"),
    ],
)
def test_a_shell_that_a_cell_has_broken_answers_and_goes_back(notebook, broken, error):
    notebook.run("import sys; x = 1")
    notebook.run(f"x = 2; {broken}", ok=False)
    for _ in range(2):
        cell = notebook.run("x = 3", ok=False)
        assert cell.error.startswith(error), cell.error
        assert "%restore N goes back" in "".join(cell.reply["traceback"])
    assert notebook.run("%restore 999", ok=False).status == "error"
    assert "restored #1" in notebook.run("%restore 1").out
    assert notebook.run("print(x)").out == "1"


def test_exit_and_restore_in_one_cell(notebook):
    notebook.cells("x = 1", "x = 2")
    assert notebook.run("exit()\n%restore 1").status == "ok"
    assert notebook.run("x").result == "1"


def test_a_forked_child_that_goes_on_takes_no_messages(notebook):
    notebook.run("import os\npid = os.fork()\nif pid: print('parent')")
    for n in range(5):
        assert notebook.run(f"print({n})").out == str(n)


def test_an_interrupt_while_a_checkpoint_is_made(notebook):
    for _ in range(10):
        msg_id = notebook.send(
            "for i in range(5):\n    get_ipython().run_line_magic('checkpoint', 'c')"
        )
        time.sleep(0.02)
        notebook.interrupt()
        notebook.wait(msg_id)
    assert notebook.run("print('fine')").out == "fine"


def test_magics_in_threads_are_refused(notebook):
    cell = notebook.run(
        "import threading\nfound = []\n"
        "def ask():\n"
        "    try: get_ipython().run_line_magic('checkpoint', '')\n"
        "    except Exception as error: found.append(type(error).__name__)\n"
        "t = threading.Thread(target=ask); t.start(); t.join(5); print(len(found))"
    )
    assert cell.out.splitlines()[-1] in ("0", "1")
    assert notebook.run("%checkpoint ok").status == "ok"


def test_two_restores_and_a_cell_behind_them(notebook):
    notebook.cells("x = 1", "x = 2")
    notebook.head()
    for _ in range(2):
        notebook.client.control_channel.send(
            notebook.client.session.msg(
                "timetravel_request",
                {"version": 1, "command": "restore", "args": {"checkpoint": 1}},
            )
        )
    notebook.command("status")  # by then the cell is behind both: they are on another channel
    msg_id = notebook.send("y = 5")
    assert notebook.wait(msg_id).status == "ok"
    assert notebook.run("print(x, y)").out == "1 5"


def test_a_restored_session_has_no_checkpoint_of_the_cell_that_was_cut_off(notebook):
    notebook.run("x = 1")
    msg_id = notebook.send("x = 50\nimport time\nprint('in')\ntime.sleep(60)")
    notebook.until_printed(msg_id)
    notebook.command("restore", checkpoint=1)
    notebook.wait(msg_id)
    assert notebook.head()["number"] == 1


def test_init_is_killed(notebook):
    notebook.run("x = 1")
    msg_id = notebook.send("import time; print('in'); time.sleep(60)")
    notebook.until_printed(msg_id)
    init_of(notebook.pid).kill()
    assert notebook.wait(msg_id).error.startswith(("SandboxDied", "ExecutorDied"))
    end = time.monotonic() + 60
    while notebook.manager.is_alive() and time.monotonic() < end:
        time.sleep(0.1)
    assert not notebook.manager.is_alive()


def test_wrong_types_are_refused(notebook):
    for command, args in (
        ("checkpoint", {"comment": 5}),
        ("checkpoint", {"label": []}),
        ("checkpoint", {"pin": "yes"}),
        ("restore", {"checkpoint": 0, "dry_run": ""}),
        ("restore", {"checkpoint": True}),
        ("restore", {"checkpoint": [1]}),
        ("config", {"set": "auto"}),
        ("config", {"set": {"memory_fraction": -1}}),
        ("config", {"set": {"budget_bytes": True}}),
        ("list", {"include_auto": 1}),
    ):
        assert notebook.refused(command, **args)["ename"] in ("BadRequest", "UnknownCheckpoint")
    told = notebook.refused("config", set={"budget_bytes": -1})["evalue"]
    assert "an int, or auto, of 0 or more" in told


def test_few_descriptors(start_notebook):
    notebook = start_notebook(prefix=("sh", "-c", 'ulimit -n 64; exec "$0" "$@"'))
    notebook.cells("x = 1", "x = 2", "%restore 1")
    assert notebook.run("x").result == "1"


def test_functions_of_python_are_replaced(notebook):
    """As a mock does: time travel does not depend on what cells put into builtins."""
    notebook.run(
        "import builtins\n"
        "def replaced(*args, **options): raise RuntimeError('replaced')\n"
        "old, builtins.open = builtins.open, replaced"
    )
    assert notebook.head()["number"] == 1
    notebook.run("x = 2; builtins.open = old")
    notebook.run("%restore 1")
    assert notebook.run("'x' in dir(), builtins.open is replaced").result == "(False, True)"


def test_a_freeze_that_fails_by_an_error_of_the_cells_making_is_answered(notebook):
    notebook.run("x = 1")
    notebook.run("import os; old = os.getcwd\nos.getcwd = lambda: 1 / 0")
    assert notebook.run("print(x)").out == "1"
    assert notebook.head()["number"] >= 1
    notebook.until_said("could not be frozen: ZeroDivisionError")
    notebook.run("os.getcwd = old; x = 2")
    at = notebook.head()["number"]
    notebook.cells("x = 3", f"%restore {at}")
    assert notebook.run("print(x)").out == "2"


def test_a_thread_that_does_not_stop_is_named_as_python_calls_it(notebook):
    notebook.run(
        "import ctypes, platform, threading, time; libc = ctypes.CDLL(None); stop = False\n"
        "def work():\n"
        "    number = {'x86_64': 14, 'aarch64': 135}[platform.machine()]  # rt_sigprocmask\n"
        "    libc.syscall(number, 0, ctypes.byref(ctypes.c_uint64(-1)), None, 8)\n"
        "    while not stop: time.sleep(0.01)\n"
        "thread = threading.Thread(target=work, name='stubborn'); thread.start()"
    )
    assert "(stubborn) did not stop in time" in notebook.until_said("did not stop in time")
    refused = notebook.run("%restore 0", ok=False).error
    assert "(stubborn)" in refused and "restart the kernel, then restore" in refused, refused
    notebook.run("stop = True; thread.join(); x = 1")
    at = notebook.head()["number"]
    notebook.cells("x = 2", f"%restore {at}")
    assert notebook.run("x").result == "1"


def test_a_process_that_ends_by_itself_whenever_it_is_woken(notebook, tmp_path):
    """Its variables, or the checkpoint before it, take its place: the session does not spin."""
    flag = tmp_path / "flag"
    notebook.run("x = 1")
    notebook.run(
        "import os, threading, time\n"
        "def end():\n"
        f"    while not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        "    os._exit(3)\n"
        "threading.Thread(target=end, daemon=True).start()"
    )
    assert notebook.head()["number"] == 2
    flag.touch()
    end = time.monotonic() + 60
    said = ""
    while time.monotonic() < end and "#1 " not in said and "could not be brought back" not in said:
        texts = [m["content"] for m in notebook.settle(1.0) if m["msg_type"] == "stream"]
        said += "".join(content["text"] for content in texts)
    assert "#1 " in said or "ends by itself as soon as it is woken" in said, said
    assert notebook.run("print(x)").out == "1"
    assert notebook.settle(1.0) == [] or "died" not in str(notebook.settle())


@pytest.mark.parametrize("setting", ["keep_last=-1", "auto=maybe", "memory_fraction=much"])
def test_a_wrong_setting_is_told_in_one_line(tmp_path, setting):
    command = [sys.executable, "-m", "kernel_runtime", f"--Supervisor.{setting}"]
    own = {"PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": str(tmp_path / "r")}
    done = subprocess.run(
        command, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == START_FAILED
    assert "cannot start, a setting is wrong" in done.stderr
    assert setting.partition("=")[0] in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("r/*"))


def test_shut_down_while_it_starts(notebook, tmp_path):
    # `notebook`: where its like keep what is theirs
    for delay in (0, 0.05, 0.1, 0.2, 0.3, 0.4):
        log = tmp_path / f"log{delay}"
        manager = Manager()
        with log.open("wb") as stderr:
            manager.start_kernel(cwd=str(tmp_path), stderr=stderr)
        client = manager.blocking_client()
        client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
        time.sleep(delay)
        client.shutdown()
        end = time.monotonic() + 60
        while manager.is_alive() and time.monotonic() < end:
            time.sleep(0.05)
        assert not manager.is_alive()
        client.stop_channels()
        manager.cleanup_resources()
        assert "Traceback" not in log.read_text(), log.read_text()
