"""What a cell does that no rollback undoes: seen, stored, and told before and after a restore."""

from __future__ import annotations

import tempfile

import pytest

CONNECT = """
import socket
with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    port = server.getsockname()[1]
    socket.create_connection(("localhost", port)).close()
print(port)
"""


def cells_of(notebook, checkpoint=-1):
    """The cells that a checkpoint holds."""
    notebook.head()
    return notebook.command("get", checkpoint=checkpoint)["cells"]


def effects_of(notebook, code):
    """(kind, subject) of the effects of a cell."""
    notebook.run(code)
    (cell,) = cells_of(notebook)
    return [(one["kind"], one["subject"]) for one in cell["effects"]]


def test_a_cell_is_recorded_whole_with_its_checkpoint(notebook):
    source = "x = 1\n" + "# long\n" * 100 + "x"
    notebook.run(source)
    (cell,) = cells_of(notebook)
    assert cell["source"] == source and cell["result"] == "1"
    assert (cell["outcome"], cell["ename"], cell["execution_count"]) == ("ok", None, 1)
    assert (
        cell["number"] == 1
        and cell["before"] == notebook.command("get", checkpoint=0)["checkpoint"]["id"]
    )
    assert 0 <= cell["duration_s"] < 60
    notebook.run("1 / 0", ok=False)
    (cell,) = cells_of(notebook)
    assert (cell["outcome"], cell["ename"]) == ("error", "ZeroDivisionError")


def test_what_is_no_cell_is_not_recorded(notebook):
    notebook.run("x = 1", silent=True)
    notebook.run("x = 2", store_history=False)
    notebook.run("x = 3")
    assert [cell["source"] for cell in notebook.command("cells")["cells"]] == ["x = 3"]


def test_cells_without_a_checkpoint_hang_on_the_next(start_notebook):
    notebook = start_notebook("--Supervisor.auto=off")
    notebook.cells("x = 1", "y = 2")
    assert [c["number"] for c in notebook.command("cells")["cells"]] == [None, None]
    notebook.run("%checkpoint here")
    notebook.command("checkpoint")
    assert [c["source"] for c in cells_of(notebook, 1)] == ["x = 1", "y = 2"]
    assert [c["source"] for c in cells_of(notebook, 2)] == ["%checkpoint here"]


def test_a_connection_is_named_as_it_was_asked_for_and_marked_as_local(notebook):
    port = notebook.run(CONNECT).out
    (cell,) = cells_of(notebook)
    (effect,) = cell["effects"]
    assert (effect["kind"], effect["count"]) == ("connection", 1)
    assert effect["subject"] in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}")
    assert effect["local"]
    assert notebook.command("status")["head"]["effects"] == 1
    report = notebook.run("%restore 0 --dry-run").out
    assert "within this machine: connected to" in report and "(cell #1)" in report
    told = notebook.run("%timeline 1").out
    assert f"[1] {cell['source'].splitlines()[0]}" in told and "not undone: connected to" in told


def test_another_machine_is_told_as_what_cannot_be_undone(notebook):
    notebook.run(
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for _ in range(3):\n    s.connect(('192.0.2.7', 443))"  # connects no packet: UDP
    )
    told = "cannot be undone: connected to 192.0.2.7:443 (3 times) (cell #1)"
    assert told in notebook.run("%restore 0 --dry-run").out
    result = notebook.command("restore", checkpoint=0)
    assert told in result["text"]
    assert [one["cell"] for one in result["effects"]] == ["#1"]
    # what is not left behind is not told of
    assert notebook.command("restore", undo=True)["effects"] == []
    assert "1 effect" in notebook.run("%timetravel list").out


def test_programs_are_named_and_shells_by_their_command(notebook):
    found = effects_of(
        notebook,
        "import os, subprocess\nsubprocess.run(['true', 'a'])\n"
        "subprocess.run('true b', shell=True)\nos.system('true c')\n!true d",
    )
    assert found == [("program", f"true {letter}") for letter in "abcd"]


def test_files_count_where_they_do_not_go_back(notebook):
    # /tmp is the host's own, and is not rolled back
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        found = effects_of(
            notebook,
            f"""
import os, tempfile
outside = {outside!r}
for name in ("inside", outside + "/a", outside + "/b"):
    open(name, "w").close()
with tempfile.TemporaryDirectory(dir=outside) as d, open(d + "/c", "w"):
    pass
with tempfile.NamedTemporaryFile(dir=outside):
    pass
os.remove(outside + "/b")
open(outside + "/a").close()
""",
        )
    assert found == [
        ("file", f"{outside}/a"),
        ("file", f"{outside}/b"),
        ("deleted", f"{outside}/b"),
    ]


def test_many_effects_are_counted_and_cost_no_memory(notebook):
    found = effects_of(
        notebook,
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for port in range(1, 301):\n    s.connect(('192.0.2.7', port))",
    )
    kinds = [kind for kind, _ in found]
    left = int(found[-1][1].removesuffix(" more"))
    assert kinds[-1] == "more" and len(found) <= 201
    assert kinds.count("connection") + left in (300, 301)  # a file of IPython's own may count


def test_requests_are_named_without_their_query(notebook):
    found = effects_of(
        notebook,
        """
import http.server, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204); self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/pay?secret=1").read()
server.shutdown(); server.server_close()
""",
    )
    kinds = dict(found)
    assert kinds["request"].endswith("/pay") and "secret" not in kinds["request"]
    assert kinds["request"].startswith("GET 127.0.0.1:")


def test_a_hook_never_makes_a_call_fail(notebook):
    notebook.run(
        "import sys\n"
        "for event in ('open', 'socket.connect', 'subprocess.Popen', 'http.client.send'):\n"
        "    sys.audit(event)\n    sys.audit(event, object(), object(), object(), object())"
    )


def test_cells_and_effects_outlive_the_kernel(start_notebook, tmp_path):
    document = tmp_path / "work" / "a.ipynb"
    document.parent.mkdir()
    document.write_text("{}")
    env = {"JPY_SESSION_NAME": str(document)}
    notebook = start_notebook(env=env)
    notebook.run("import socket\nsocket.socket(type=2).connect(('192.0.2.7', 9))\nx = '\\udc80'")
    before = cells_of(notebook)
    notebook.manager.shutdown_kernel()
    again = start_notebook(env=env)
    assert again.command("get", checkpoint=1)["cells"] == before
    assert before[0]["effects"][0]["subject"] == "192.0.2.7:9"
    assert again.command("cells")["cells"] == []  # the process is a fresh one


def test_a_cell_whose_process_dies_is_not_on_the_branch(notebook):
    notebook.run("x = 1")
    notebook.run("open('f', 'w').close(); import os; os._exit(3)", ok=False)
    notebook.run("y = 2")
    assert [c["source"] for c in notebook.command("cells")["cells"]] == ["x = 1", "y = 2"]
    safety = next(c for c in notebook.command("list")["checkpoints"] if c["reason"] == "safety")
    assert [c["outcome"] for c in cells_of(notebook, safety["id"])] == ["aborted"]


@pytest.mark.parametrize("middle", [1, 2])
def test_a_deleted_checkpoint_leaves_its_cells_to_its_children(notebook, middle):
    notebook.cells("a = 1", "b = 2", "c = 3")
    notebook.head()
    notebook.command("delete", checkpoint=middle)
    assert [c["source"] for c in notebook.command("cells")["cells"]] == ["a = 1", "b = 2", "c = 3"]
