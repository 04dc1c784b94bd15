"""Everything that a stock kernel does works: the user must not notice which kernel it is."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import zmq

from tests.conftest import UNTIL_GO

Start = Callable[..., object]


def test_heartbeats_are_echoed(notebook):
    info = notebook.client.get_connection_info()
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(f"tcp://{info['ip']}:{info['hb_port']}")
        for word in (b"ping", b"again"):
            socket.send(word)
            assert socket.poll(60_000) and socket.recv() == word


def test_kernel_info_announces_time_travel_and_no_debugger(notebook):
    info = notebook.control("kernel_info_request", {})
    assert info["timetravel"] == {"version": 1}
    assert info["supported_features"] == []
    assert info["implementation"] == "ipython"


def test_output_of_python_c_and_children_keeps_its_order(notebook):
    for _ in range(10):
        cell = notebook.run(
            "import os, ctypes\n"
            "print('one')\n"
            "os.system('echo two')\n"
            "print('three')\n"
            "libc = ctypes.CDLL(None); libc.puts(b'four'); libc.fflush(None)\n"
            "print('five', flush=True)\n"
            "os.write(1, b'six\\n')"
        )
        assert cell.out.split() == ["one", "two", "three", "four", "five", "six"]


def test_prints_are_joined_and_none_is_lost(notebook):
    cell = notebook.run("for i in range(20000): print(i)")
    assert cell.text() == "".join(f"{i}\n" for i in range(20000))
    assert len(cell.of_type("stream")) < 400


def test_stdout_and_stderr_are_apart(notebook):
    notebook.run("")  # what is said of the start is said now
    cell = notebook.run("import sys; print('o'); print('e', file=sys.stderr); print('p')")
    assert (cell.text(), cell.text("stderr")) == ("o\np\n", "e\n")


def test_large_output_through_descriptors(notebook):
    cell = notebook.run(
        "import os, subprocess, sys\n"
        "os.write(1, b'y' * 300_000)\n"
        "subprocess.run([sys.executable, '-c', \"print('z' * 200_000)\"])\n"
        "print('end')"
    )
    text = cell.text()
    assert (text.count("y"), text.count("z"), text.count("end")) == (300_000, 200_000, 1)


def test_shell_commands_and_magics(notebook):
    assert notebook.run("!echo hello").out.strip() == "hello"
    assert notebook.run("%%bash\necho from bash").out == "from bash"
    assert notebook.run("a = !echo captured\na[0]").result == "'captured'"
    assert notebook.run("%load_ext autoreload\n%autoreload 2").status == "ok"


def test_rich_display_pandas_and_matplotlib(notebook):
    cell = notebook.run("import pandas as pd; pd.DataFrame({'a': [1]})")
    assert "text/html" in cell.of_type("execute_result")[0]["content"]["data"]
    cell = notebook.run(
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"
    )
    assert any("image/png" in m["content"]["data"] for m in cell.of_type("display_data"))


def test_errors_have_a_traceback_and_abort_the_queue(notebook):
    ids = notebook.send_queue(f"{UNTIL_GO}1/0", "print('not run')")
    failed, aborted = (notebook.wait(i) for i in ids)
    assert failed.error == "ZeroDivisionError: division by zero"
    assert any("ZeroDivisionError" in line for line in failed.reply["traceback"])
    assert aborted.status == "aborted"
    assert notebook.run("print('alive')").out == "alive"


def test_stop_on_error_false_runs_the_queue(notebook):
    ids = [notebook.send("1/0", stop_on_error=False), notebook.send("print('run')")]
    assert [notebook.wait(i).status for i in ids] == ["error", "ok"]


def test_user_expressions_silent_and_history(notebook):
    assert notebook.run("x = 2", user_expressions={"y": "x + 1"}).reply["user_expressions"]["y"][
        "data"
    ] == {"text/plain": "3"}
    before = notebook.run("x").count
    quiet = notebook.run("x = 5", silent=True)
    assert not quiet.of_type("execute_input")
    assert notebook.run("x", store_history=False).count == before
    assert notebook.run("x").count == before + 1


def test_what_the_kernel_has_to_say_is_not_said_in_a_silent_cell(notebook):
    ids = [notebook.send(f"print('in')\n{UNTIL_GO}"), notebook.send("", silent=True)]
    notebook.until_printed(ids[0])
    ids.append(notebook.send(""))
    notebook.command("tell", group="g", text="hear this", state={})
    (notebook.cwd / "go").touch()
    said = ["hear this" in notebook.wait(one).text("stderr") for one in ids]
    assert said == [False, False, True]


def test_input_and_getpass(notebook):
    def answer(msg_id: str, value: str) -> bool:
        request = notebook.client.get_stdin_msg(timeout=60)
        assert request["parent_header"]["msg_id"] == msg_id
        notebook.client.input(value)
        return bool(request["content"]["password"])

    msg_id = notebook.send("print('you:', input('who? '))", allow_stdin=True)
    assert answer(msg_id, "ann") is False
    assert notebook.wait(msg_id).out == "you: ann"
    msg_id = notebook.send("import getpass; print(getpass.getpass())", allow_stdin=True)
    assert answer(msg_id, "secret") is True
    assert notebook.wait(msg_id).out == "secret"
    assert "StdinNotImplementedError" in notebook.run("input()", allow_stdin=False, ok=False).error


def test_input_is_interrupted_at_once_and_a_late_answer_is_dropped(notebook):
    msg_id = notebook.send("who = input('name? ')", allow_stdin=True)
    notebook.client.get_stdin_msg(timeout=60)
    notebook.interrupt()
    assert "KeyboardInterrupt" in notebook.wait(msg_id).error
    notebook.client.input("late")
    msg_id = notebook.send("print(input('again? '))", allow_stdin=True)
    notebook.client.get_stdin_msg(timeout=60)
    notebook.client.input("fresh")
    assert notebook.wait(msg_id).out == "fresh"


@pytest.mark.parametrize(
    "code",
    [
        "import time; print('in'); time.sleep(60)",
        "print('in')\nwhile True: pass",
        "print('in')\n!sleep 60",
        "import subprocess, sys; print('in')\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
        "import asyncio; print('in'); await asyncio.sleep(60)",
    ],
)
def test_interrupt(notebook, code):
    msg_id = notebook.send(code)
    notebook.until_printed(msg_id)
    notebook.interrupt()
    notebook.interrupt()
    cell = notebook.wait(msg_id)
    if "!" not in code:
        assert cell.status == "error" and ("Interrupt" in cell.error or "Cancel" in cell.error)
    assert notebook.run("print('alive')").out == "alive"


def test_an_interrupt_during_a_fork_is_not_lost(notebook):
    """It is raised in the caller of fork, not in a function that a library runs after it."""
    notebook.run(
        "import _thread, logging, os\n"
        "def fork_is_interrupted():\n"
        "    try:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        for _ in range(1000): pass\n"
        "    except KeyboardInterrupt:\n"
        "        os.wait()\n"
        "        return True\n"
        "os.register_at_fork(before=_thread.interrupt_main)"
    )
    assert notebook.run("fork_is_interrupted()").result == "True"
    assert notebook.run("logging._lock.acquire(timeout=1)").result == "True"


@pytest.mark.parametrize("code", ["time.sleep(60)", "await asyncio.sleep(60)"])
@pytest.mark.parametrize("heard", ["idle", "busy", "execute_input"])
def test_an_interrupt_before_the_code_runs_is_not_lost(notebook, heard, code):
    notebook.run("import asyncio, time")
    for _ in range(10):
        before, msg_id = notebook.send_queue(UNTIL_GO, code)
        # with the idle of the one, the other is in flight: the executor has not seen it yet
        of = before if heard == "idle" else msg_id
        while True:
            message = notebook.client.get_iopub_msg(timeout=60)
            notebook.unclaimed.append(message)
            state = message["content"].get("execution_state")
            if (
                heard in (state, message["msg_type"])
                and message["parent_header"].get("msg_id") == of
            ):
                break
        notebook.interrupt()
        assert notebook.wait(before).status == "ok"
        cell = notebook.wait(msg_id)
        assert cell.status == "error" and cell.reply["ename"] == cell.error.partition(":")[0]
        assert cell.error.startswith(("KeyboardInterrupt", "CancelledError"))
    assert notebook.run("print('alive')").out == "alive"


def test_a_callback_of_ipython_that_hangs_can_be_interrupted(notebook):
    """It is IPython that says so and goes on with the cell, as in a stock kernel."""
    notebook.run(
        "import os, signal, time\n"
        "def hang(info):\n"
        "    if 'now' not in info.raw_cell: return\n"
        "    # the signal's byte is read when its handler has run\n"
        "    r, w = os.pipe(); os.set_blocking(w, False); old = signal.set_wakeup_fd(w)\n"
        "    try:\n"
        "        print('in', flush=True); os.read(r, 1)\n"
        "        print('once', flush=True); time.sleep(60)\n"
        "    finally: signal.set_wakeup_fd(old)\n"
        "get_ipython().events.register('pre_run_cell', hang)"
    )
    msg_id = notebook.send("'now'")
    notebook.until_printed(msg_id, "in")
    notebook.interrupt()
    notebook.until_printed(msg_id, "once")  # two signals that are pending at a time are one
    notebook.interrupt()
    cell = notebook.wait(msg_id)
    assert cell.status == "error" and "KeyboardInterrupt" in str(cell.messages)
    notebook.run("get_ipython().events.unregister('pre_run_cell', hang)")
    assert notebook.run("print('alive')").out == "alive"


def test_interrupt_by_signal_and_while_idle(notebook):
    notebook.run("x = 1")
    notebook.interrupt()
    os.kill(notebook.pid, signal.SIGINT)
    notebook.command("status")  # by then it has seen the signal
    assert notebook.run("print(x)").out == "1"
    msg_id = notebook.send("import time\nprint('in')\ntime.sleep(60)")
    notebook.until_printed(msg_id)
    os.kill(notebook.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in notebook.wait(msg_id).error


def test_tasks_live_on_between_cells(notebook):
    notebook.run(
        "import asyncio\nn = 0\n"
        "async def tick():\n    global n\n    while True:\n"
        "        n += 1; await asyncio.sleep(.01)\n"
        "task = asyncio.ensure_future(tick())"
    )
    for _ in range(2):
        notebook.run("seen = n\nwhile n < seen + 3: await asyncio.sleep(.01)")


def test_complete_inspect_is_complete_history(notebook):
    client = notebook.client
    notebook.run("alpha_value = 3")

    def ask(msg_id: str):
        while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != msg_id:
            pass
        return reply["content"]

    assert "alpha_value" in ask(client.complete("alpha_"))["matches"]
    assert ask(client.inspect("alpha_value"))["found"]
    assert ask(client.is_complete("for i in x:"))["status"] == "incomplete"
    assert ask(client.history(hist_access_type="tail", n=5))["history"][-1][2] == "alpha_value = 3"


def test_comms_and_widgets(notebook):
    cell = notebook.run("import ipywidgets as W; w = W.IntText(value=1); w")
    opened = {m["content"]["comm_id"] for m in cell.of_type("comm_open")}
    comm_id = notebook.run("w.comm.comm_id").result.strip("'")
    assert comm_id in opened
    client = notebook.client
    data = {"method": "update", "state": {"value": 7}, "buffer_paths": []}
    message = client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
    client.shell_channel.send(message)
    assert notebook.run("w.value").result == "7"
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": "no such", "data": {}}))
    cell = notebook.run("print('clean')")
    assert (cell.text(), cell.text("stderr")) == ("clean\n", "")


def test_a_comm_message_reaches_an_asynchronous_cell(notebook):
    comm_id = notebook.run(
        "import ipywidgets as W, asyncio; w = W.IntText(); w.comm.comm_id"
    ).result.strip("'")
    msg_id = notebook.send(
        "print('wait')\nwhile w.value == 0: await asyncio.sleep(.01)\nprint('got', w.value)"
    )
    later = notebook.send("print('after')")
    client = notebook.client
    data = {"method": "update", "state": {"value": 4}, "buffer_paths": []}
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm_id, "data": data}))
    assert notebook.wait(msg_id).out == "wait\ngot 4"
    assert notebook.wait(later).out == "after"


def test_threads_print_into_the_cell_they_are_pinned_to(notebook):
    notebook.run(
        "import threading, time\n"
        "def job(parent):\n"
        "    get_ipython().set_parent(parent)\n"
        "    for i in range(3): time.sleep(.1); print('B', i)\n"
    )
    first = notebook.send(
        "t = threading.Thread(target=job, args=(get_ipython().get_parent(),)); t.start()"
    )
    second = notebook.send("t.join(); print('joined')")
    done = notebook.wait(second)
    assert done.out == "joined"
    notebook.until_printed(first, "B 2\n")
    late = [m for m in notebook.unclaimed if m["msg_type"] == "stream"]
    texts = "".join(m["content"]["text"] for m in late if m["parent_header"]["msg_id"] == first)
    assert texts == "B 0\nB 1\nB 2\n"


def test_output_of_a_forked_child_arrives_once(notebook):
    cell = notebook.run(
        "import os\npid = os.fork()\n"
        "if pid == 0:\n    print('child'); os._exit(0)\n"
        "os.waitpid(pid, 0); print('parent')"
    )
    assert cell.out.split() == ["child", "parent"]


def test_late_output_of_a_child_belongs_to_the_cell_that_ran_last(notebook):
    cell = notebook.run(
        "import subprocess\n"
        "late = 'while [ ! -e go ]; do sleep 0.05; done; echo late'\n"
        "child = subprocess.Popen(late, shell=True)"
    )
    notebook.client.complete("chi", reply=True, timeout=60)
    notebook.run("", silent=True)
    (notebook.cwd / "go").touch()
    late = notebook.until(lambda m: "late" in m["content"].get("text", ""))
    assert late["parent_header"]["msg_id"] == cell.msg_id


def test_usage_request(notebook):
    notebook.run("x = bytearray(50_000_000)")
    usage = notebook.control("usage_request", {})
    assert usage["kernel_memory"] > 50_000_000
    assert usage["cpu_count"] == psutil.cpu_count()


def test_debug_and_unknown_requests_are_answered(notebook):
    reply = notebook.control("debug_request", {"command": "initialize", "seq": 1})
    assert reply["success"] is False


def test_debugpy_is_not_loaded_and_can_be_imported(notebook):
    assert notebook.run("import sys; 'debugpy' in sys.modules").result == "False"
    assert notebook.run("import debugpy; debugpy.__name__").result == "'debugpy'"


def test_atexit_runs_and_nothing_is_left(start_notebook, tmp_path):
    notebook = start_notebook()
    notebook.run(
        "import atexit, subprocess\natexit.register(lambda: open('bye', 'w').write('x'))\n"
        "p = subprocess.Popen(['sleep', '1000'])"
    )
    family = psutil.Process(notebook.pid).children(recursive=True)
    assert len(family) >= 3
    notebook.manager.shutdown_kernel()
    assert (notebook.cwd / "bye").exists()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert list((tmp_path / "r").iterdir()) == []


def _runtime_directory(pid, tmp_path):
    for place in (tmp_path / "r", Path(tempfile.gettempdir()), Path("/tmp")):
        for owner in place.glob("timetravel-k-*/owner"):
            with contextlib.suppress(OSError):
                if f" {pid}:" in owner.read_text():
                    return owner.parent
    raise AssertionError("it has none")


def test_kill_of_the_supervisor_leaves_nothing(start_notebook, tmp_path):
    notebook = start_notebook()
    notebook.run("import subprocess; p = subprocess.Popen(['sleep', '1000'])")
    family = psutil.Process(notebook.pid).children(recursive=True)
    left = _runtime_directory(notebook.pid, tmp_path)
    os.kill(notebook.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    start_notebook()
    assert not left.exists()


def test_a_kernel_that_was_killed_starts_again_under_its_name(start_notebook, tmp_path):
    """As Jupyter restarts it: with the same connection file, whatever the killed one left."""
    notebook = start_notebook()
    for _ in range(3):
        assert notebook.run("%checkpoint").out.startswith("checkpoint #")
    before = _runtime_directory(notebook.pid, tmp_path)
    notebook.manager.restart_kernel(now=True)
    notebook.client.wait_for_ready(timeout=60)
    assert notebook.run("%checkpoint").out.startswith("checkpoint #")
    assert _runtime_directory(notebook.pid, tmp_path) != before


def test_restart_gives_a_clean_session(notebook):
    notebook.run("n = 1")
    old = psutil.Process(notebook.pid).children(recursive=True)
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=60)
    assert notebook.run("print('n' in dir())").out == "False"
    assert not psutil.wait_procs(old, timeout=60)[1]


def test_no_zombies(notebook, ability):
    ability("namespaces", notebook.command("status")["engines"]["sandbox"] == "namespaces")
    cell = notebook.run(
        "import subprocess, time\n"
        "for _ in range(50): subprocess.run(['sh', '-c', '(sleep 0.1 &) ; exit'])\n"
        "def left():\n"
        "    return subprocess.run(\"ps -eo stat,comm | grep -e '^Z' -e 'sleep$'\", shell=True,"
        " capture_output=True, text=True).stdout\n"
        "end = time.monotonic() + 60\n"
        "while (seen := left()) and time.monotonic() < end: time.sleep(.1)\n"
        "print(seen)"
    )
    assert cell.out == ""


def test_the_connection_key_does_not_reach_user_code(notebook):
    cell = notebook.run(
        "import os, sys\n"
        "print(get_ipython().kernel.session.key, any('kernel-' in v for v in sys.argv))"
    )
    assert cell.out == "b'' False"


def test_mangled_messages_stop_no_channel(notebook):
    for channel in (notebook.client.shell_channel, notebook.client.control_channel):
        channel.socket.send_multipart([b"<IDS|MSG>", b"bad", b"{}", b"{}", b"{}", b"{}"])
        channel.socket.send_multipart([b"junk"])
    assert notebook.run("print('fine')").out == "fine"
    assert notebook.control("kernel_info_request", {})["status"] == "ok"
