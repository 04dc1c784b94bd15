"""What clients see while the executor under them is replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import nbclient
import nbformat
import psutil
import pytest

from tests.conftest import UNTIL_GO
from tests.kernel.durable_world import durable, kill
from tests.session_processes import below, frozen_of, wait_for_no_zombies
from tests.waiting import PATIENCE, until

CELLS = [
    'x = [1]; print("c1", x)',
    'x.append(2); print("c2", x); x',
    "%restore 1",
    'print("c4", x); x',
    "%restore 2",
    'print("c6", x); x',
]


@pytest.fixture
def kernelspec(tmp_path, monkeypatch):
    """The kernel of this checkout under a name of its own, for programs that start kernels."""
    directory = tmp_path / "data" / "kernels" / "tt-test"
    directory.mkdir(parents=True)
    argv = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "tt", "language": "python", "interrupt_mode": "message"}
    import json

    (directory / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parents[2]))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return "tt-test"


def notebook_of(cells):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell(c) for c in cells]
    return nb


def text_of(cell):
    return "".join(o["text"] for o in cell.outputs if o.output_type == "stream").strip()


def result_of(cell):
    return [o["data"]["text/plain"] for o in cell.outputs if o.output_type == "execute_result"]


def check_run(nb):
    texts = [text_of(c) for c in nb.cells]
    assert texts[0] == "c1 [1]" and texts[1] == "c2 [1, 2]"
    assert texts[2].startswith("restored #1") and texts[3] == "c4 [1]"
    assert texts[4].startswith("restored #2") and texts[5] == "c6 [1, 2]"
    assert [result_of(nb.cells[i]) for i in (1, 3, 5)] == [["[1, 2]"], ["[1]"], ["[1, 2]"]]
    assert all(isinstance(c.execution_count, int) for c in nb.cells)


def test_01_nbclient(kernelspec, tmp_path):
    nb = notebook_of(CELLS)
    work = tmp_path / "w"
    work.mkdir()
    nbclient.NotebookClient(
        nb,
        timeout=PATIENCE,
        kernel_name=kernelspec,
        iopub_timeout=PATIENCE,
        raise_on_iopub_timeout=True,
        resources={"metadata": {"path": str(work)}},
    ).execute()
    check_run(nb)


def test_01_papermill(kernelspec, tmp_path):
    nb = notebook_of(CELLS)
    work = tmp_path / "w"
    work.mkdir()
    nbformat.write(nb, work / "in.ipynb")
    subprocess.run(
        [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-k", kernelspec],
        cwd=work,
        check=True,
        capture_output=True,
        timeout=90,
    )
    check_run(nbformat.read(work / "out.ipynb", 4))


def test_01_jupyter_console(kernelspec, tmp_path):
    work = tmp_path / "w"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_console", "--kernel", kernelspec, "--simple-prompt"],
        input="x = 1\nx = 2\n%restore 1\nprint('x is', x)\nexit\n",
        cwd=work,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "x is 1" in done.stdout, done


def test_02_message_ids_never_repeat(notebook):
    second = notebook.manager.blocking_client()
    second.start_channels()
    second.wait_for_ready(timeout=60)
    tick = 'for i in range(5): print("tick", i, flush=True)'
    cells = [notebook.run("a = 0"), notebook.run(tick)]
    for _ in range(2):
        cells.append(notebook.run("%restore 1"))
        cells.append(notebook.run(tick))
    expected = "".join(f"tick {i}\n" for i in range(5))
    assert [c.text() for c in cells if "tick" in c.text()] == [expected] * 3
    ids = [m["header"]["msg_id"] for c in cells for m in c.messages]
    assert len(ids) == len(set(ids))
    assert len({m["header"]["session"] for c in cells for m in c.messages}) == 1
    seen = ""
    while seen.count("tick 4") < 3:
        message = second.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream":
            seen += message["content"]["text"]
    second.stop_channels()


def test_04_run_all_with_a_restore_and_an_error(notebook):
    codes = ["n = 1", "n = 2", "%restore 1", "print('n is', n)", "n += 10", "print('n is', n)"]
    cells = [notebook.wait(i) for i in [notebook.send(c) for c in codes]]
    assert [c.status for c in cells] == ["ok"] * 6
    assert (cells[3].out, cells[5].out) == ("n is 1", "n is 11")
    ids = notebook.send_queue(f"{UNTIL_GO}1/0", "%restore 1", "print('not run')")
    assert [notebook.wait(i).status for i in ids] == ["error", "aborted", "aborted"]
    assert notebook.run("print('alive', n)").out == "alive 11"
    ids = [notebook.send("1/0", stop_on_error=False)]
    ids += [notebook.send(c) for c in ["%restore 1", "print('run', n)"]]
    cells = [notebook.wait(i) for i in ids]
    assert [c.status for c in cells] == ["error", "ok", "ok"]
    assert cells[2].out == "run 1"


@pytest.mark.parametrize("interrupt", ["message", "signal"])
def test_05_input_around_an_interrupt_and_a_restore(notebook, interrupt):
    notebook.run('who = "nobody"')
    refused = notebook.run("input()", allow_stdin=False, ok=False, store_history=False)
    assert "StdinNotImplementedError" in refused.error
    msg_id = notebook.send('who = input("name? ")', allow_stdin=True)
    notebook.client.get_stdin_msg(timeout=60)
    interrupt_by(notebook, interrupt)
    cell = notebook.wait(msg_id)  # before anything is typed
    assert cell.status == "error" and "KeyboardInterrupt" in cell.error
    notebook.client.input("late")
    notebook.run("%restore 1")
    msg_id = notebook.send('who2 = input("again? "); print(who, who2)', allow_stdin=True)
    assert notebook.client.get_stdin_msg(timeout=60)["parent_header"]["msg_id"] == msg_id
    notebook.client.input("fresh")
    assert notebook.wait(msg_id).out == "nobody fresh"
    assert "StdinNotImplementedError" in notebook.run("input()", allow_stdin=False, ok=False).error


def test_07_widgets_of_one_side_only(notebook):
    notebook.run("import ipywidgets as W\nold = W.IntText(value=1); old")
    old_id = notebook.run("old.comm.comm_id").result.strip("'")
    notebook.run("new = W.IntText(value=2); display(new); new_id = new.comm.comm_id; old.close()")
    new_id = notebook.run("new_id").result.strip("'")
    cell = notebook.run("%restore 2")
    closed = {m["content"]["comm_id"] for m in cell.of_type("comm_close")}
    assert new_id in closed and len(closed) >= 3

    def opens_old(message):
        return message["msg_type"] == "comm_open" and message["content"]["comm_id"] == old_id

    if not any(map(opens_old, cell.messages)):
        notebook.until(opens_old)
    later = cell.messages + notebook.settle()
    old = [m["content"]["data"] for m in later if opens_old(m)]
    assert [data["state"]["value"] for data in old] == [1]
    client = notebook.client
    msg_id = client.comm_info()
    while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != msg_id:
        pass
    assert old_id in reply["content"]["comms"] and new_id not in reply["content"]["comms"]
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": new_id, "data": {}}))
    cell = notebook.run("print('new' in dir(), old.comm is not None, old.value)")
    assert cell.out == "False True 1" and cell.text("stderr") == ""


def test_08_display_ids_address_the_old_output(notebook):
    notebook.run(
        "from IPython.display import display\n"
        'h = display("start", display_id=True); h2 = display("fixed", display_id="prog")'
    )
    ours = notebook.run("h.display_id", store_history=False).result.strip("'")
    cell = notebook.run('h.update("half"); k = display("other", display_id=True)')
    left = cell.of_type("display_data")[0]["content"]["transient"]["display_id"]
    notebook.run("%restore 1")
    cell = notebook.run(
        'h.update("again"); h2.update("done"); k2 = display("new", display_id=True)'
    )
    updated = [m["content"]["transient"]["display_id"] for m in cell.of_type("update_display_data")]
    assert updated == [ours, "prog"]
    assert cell.of_type("display_data")[0]["content"]["transient"]["display_id"] not in (ours, left)


def interrupt_by(notebook, mode):
    """As a server does, by the kernelspec's ``interrupt_mode``."""
    if mode == "message":
        notebook.interrupt()
    else:
        os.killpg(os.getpgid(notebook.pid), signal.SIGINT)  # LocalProvisioner.send_signal
        notebook.command("status")  # by then it has seen the signal


@pytest.mark.parametrize("mode", ["message", "signal"])
def test_10_interrupts_hit_the_running_cell_only(start_notebook, mode):
    notebook = start_notebook("--Supervisor.differences=0")
    notebook.run("import time, subprocess, sys\nv = 1")
    notebook.run("v = 2")
    notebook.run("%restore 1")

    def interrupted(code, times=1):
        msg_id = notebook.send(code)
        notebook.until_printed(msg_id, "in")
        for _ in range(times):
            interrupt_by(notebook, mode)
            time.sleep(0.05)
        cell = notebook.wait(msg_id)
        assert cell.status == "error" and cell.reply["ename"] == "KeyboardInterrupt"

    interrupted("print('in', flush=True); time.sleep(60)")
    # subprocess forgets a child whose start is interrupted: this one says that it has started
    child = "import time; print('in', flush=True); time.sleep(60) # child"
    interrupted(f"subprocess.run([sys.executable, '-c', {child!r}])")
    assert notebook.run("print('alive', v)").out == "alive 1"
    until(lambda: not any(seen.command.endswith("# child") for seen in below(notebook.pid)))
    notebook.head()
    frozen_of(notebook.pid, least=4)  # an interrupt ends no checkpoint
    notebook.run("%restore 2")
    assert notebook.run("print(v)").out == "2"
    interrupted("print('in', flush=True)\nwhile True: pass", times=3)
    assert notebook.run("print(v)").out == "2"


def are_free(ports):
    """Nobody listens there any more. Raises OSError."""
    for port in ports:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that just ended
            one.bind(("127.0.0.1", port))


def test_11_nothing_is_left_behind(start_notebook, tmp_path):
    for how in ("shutdown", "kill"):
        notebook = start_notebook("--Supervisor.differences=0")
        ports = [
            getattr(notebook.manager, f"{channel}_port")
            for channel in ("shell", "iopub", "stdin", "control", "hb")
        ]
        with pytest.raises(OSError):
            are_free(ports)
        for n in range(1, 8):
            notebook.run(f"n = {n}")
        notebook.run("%restore 3")
        for n in range(8, 13):
            notebook.run(f"n = {n}")
        notebook.run("%restore 10")
        for n in range(13, 16):
            notebook.run(f"n = {n}")
        notebook.head()
        wait_for_no_zombies(notebook.pid)
        frozen_of(notebook.pid, least=15)
        family = psutil.Process(notebook.pid).children(recursive=True)
        if how == "shutdown":
            notebook.manager.restart_kernel()
            notebook.client.wait_for_ready(timeout=60)
            assert not psutil.wait_procs(family, timeout=60)[1]
            assert notebook.run("print('n' in dir())").out == "False"
            family = psutil.Process(notebook.pid).children(recursive=True)
            notebook.manager.shutdown_kernel()
        else:
            os.kill(notebook.pid, signal.SIGKILL)
        assert not psutil.wait_procs(family, timeout=60)[1]
        assert not [p for p in (tmp_path / "r").iterdir() if p.name.startswith("timetravel")]
        are_free(ports)


def test_13_a_thread_of_the_left_timeline_is_silent(notebook):
    notebook.run(
        "import threading, time\n"
        "def job(parent, tag, n):\n"
        "    get_ipython().set_parent(parent)\n"
        "    for i in range(n): time.sleep(.3); print(tag, i, flush=True)\n"
    )
    started = notebook.run(
        "p = get_ipython().get_parent(); threading.Thread(target=job, args=(p, 'A', 10)).start()"
    )
    time.sleep(1)
    restore = notebook.run("%restore 1")
    late = [m for m in notebook.settle(1.5) if m["msg_type"] == "stream"]
    known = (started.msg_id, restore.msg_id)
    assert not [m for m in late if m["parent_header"]["msg_id"] not in known]
    first = notebook.run(
        "p = get_ipython().get_parent(); t = threading.Thread(target=job, args=(p, 'B', 3))\n"
        "t.start(); time.sleep(.2)"
    )
    assert notebook.run('t.join(); print("joined")').out == "joined"
    texts = "".join(
        m["content"]["text"]
        for m in first.messages + notebook.unclaimed
        if m["msg_type"] == "stream" and m["parent_header"]["msg_id"] == first.msg_id
    )
    assert texts == "B 0\nB 1\nB 2\n"
    assert not [m for m in notebook.unclaimed if "A" in str(m["content"].get("text", ""))]


def test_14_output_of_c_code_and_children_after_a_restore(notebook):
    notebook.run("import os, ctypes, subprocess, sys\nx = 1")
    notebook.run(
        "x = 2\nsubprocess.Popen('sleep 1; while true; do echo left; sleep .2; done', shell=True)"
    )
    for _ in range(2):
        notebook.run("%restore 1")
        cell = notebook.run(
            'os.system("echo from-shell"); libc = ctypes.CDLL(None); libc.puts(b"from-c")\n'
            "libc.fflush(None)"
        )
        assert cell.out.split() == ["from-shell", "from-c"]
        cell = notebook.run(
            'os.write(1, b"y" * 300_000)\n'
            "subprocess.run([sys.executable, '-c', \"print('z' * 200_000)\"]); print('end', x)",
        )
        text = cell.text()
        assert (text.count("y"), text.count("z"), text.count("end 1")) == (300_000, 200_000, 1)
    assert "left" not in notebook.run("import time; time.sleep(1.5); print('q')").text()


@pytest.mark.parametrize("source", ["process", "disk"])
def test_16_requests_while_a_restore_is_under_way(start_notebook, document, source):
    notebook = start_notebook("--Supervisor.images=False", **document)
    notebook.run("import numpy as np\nalpha_value = np.ones(40_000_000)")
    if source == "disk":  # no process of it is left, and no image was written
        notebook.run("%checkpoint --label alpha")
        assert durable(notebook, 2)["state"] == "ready"
        kill(notebook)
        notebook = start_notebook("--Supervisor.images=False", **document)
    notebook.run("beta_value = 1")
    msg_id = notebook.send("%restore 1" if source == "process" else "%restore alpha")
    client = notebook.client
    asked = [client.complete("alpha_"), client.inspect("alpha_value"), client.is_complete("x")]
    assert notebook.control("kernel_info_request", {})["status"] == "ok"
    second = notebook.manager.blocking_client()
    second.start_channels()
    second.wait_for_ready(timeout=60)
    replies = {}
    while len(replies) < 4:
        reply = client.get_shell_msg(timeout=60)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]
    assert list(replies) == [msg_id, *asked]
    assert "alpha_value" in replies[asked[0]]["matches"]
    notebook.until(
        lambda m: (
            m["parent_header"].get("msg_id") == msg_id
            and m["content"].get("execution_state") == "idle"
        )
    )
    restored = [m for m in notebook.unclaimed if m["parent_header"].get("msg_id") == msg_id]
    said = "".join(m["content"]["text"] for m in restored if m["msg_type"] == "stream")
    assert ("a fresh one has the variables" in said) is (source == "disk"), said
    states = [m["content"]["execution_state"] for m in restored if m["msg_type"] == "status"]
    assert states == ["busy", "idle"]
    until(notebook.client.hb_channel.is_beating)  # it looks once a second
    assert notebook.run("print('beta_value' in dir(), alpha_value.sum())").out == "False 40000000.0"
    heard = ""
    while "40000000.0" not in heard:
        message = second.get_iopub_msg(timeout=PATIENCE)
        heard += message["content"]["text"] if message["msg_type"] == "stream" else ""
    second.stop_channels()


def test_19_counts_in_and_out_go_back_with_the_process(notebook):
    notebook.cells("40 + 1", "40 + 2", "%restore 1")
    cell = notebook.run("40 + 4")
    assert cell.result == "44" and cell.count == 2
    counts = {
        m["content"]["execution_count"]
        for m in cell.messages
        if m["msg_type"] in ("execute_input", "execute_result")
    }
    assert counts == {2}
    cell = notebook.run("print(_, _1, sorted(Out), len(In), In[-1][:5])")
    assert cell.out == "44 41 [1, 2] 4 print" and cell.count == 3
