"""The cases `security` as a user meets them; hostile files to import are in tests/exchange.

What needs the server (routes, the sidebar, agents) or a remote store is not here.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.exchange.conftest import call, end
from tests.kernel.durable_world import durable, kill

Start = Callable[..., Any]


@pytest.fixture
def books(start_notebook: Start, tmp_path: Path) -> Callable[..., Any]:
    """Start a kernel of notebook NAME with the keys of a user."""

    def start(name: str, keys: str = "mine", *arguments: str) -> Any:
        book = tmp_path / name / "n.ipynb"
        book.parent.mkdir(exist_ok=True)
        if not book.exists():
            book.write_text(json.dumps({"cells": [], "metadata": {"name": name}}))
        env = {
            "JPY_SESSION_NAME": str(book),
            "JUPYTER_TIMETRAVEL_KEYS": str(tmp_path / "keys" / keys),
        }
        images = "--Supervisor.images=False"  # variables are what is brought back
        return start_notebook(images, *arguments, cwd=book.parent, env=env)

    return start


PROBE = """
class Probe:
    def __reduce__(self):
        return open, ({path!r}, 'w')
x = Probe(); y = 'ran'
"""


def test_01_a_foreign_timeline_runs_nothing_before_it_is_trusted(
    books: Any, tmp_path: Path
) -> None:
    probe, store, file = tmp_path / "ran", tmp_path / "store", tmp_path / "t.ttl"

    def tt(*words: str | Path, status: int = 0, keys: str = "mine") -> str:
        mine = str(tmp_path / "keys" / keys)
        return call(*words, store=store, status=status, JUPYTER_TIMETRAVEL_KEYS=mine)

    theirs = books("theirs", "theirs")
    theirs.run(PROBE.format(path=str(probe)))
    theirs.run("%checkpoint made")
    capture = durable(theirs, 2)
    assert capture["state"] == "ready" and not capture["not_captured"], capture
    assert not probe.exists(), "neither the copy nor the trial writes a file"
    end(theirs)
    tt("export", tmp_path / "theirs/n.ipynb", "-o", file, keys="theirs")
    book = tmp_path / "mine" / "n.ipynb"
    book.parent.mkdir()
    book.write_text(json.dumps({"cells": [], "metadata": {"name": "mine"}}))
    told = tt("import", file, "--as", book)
    id = told.partition(" as ")[2].split()[0]
    assert f"`jupyter timetravel trust {id}` allows it" in told
    for words in (("list", id), ("show", id, "2"), ("diff", id, "1", "2"), ("sessions",)):
        tt(*words)
    for words in (("restore", id, "made"), ("adopt", id, book), ("verify", id)):
        assert "trust" in tt(*words, status=1), words
    assert not probe.exists()
    tt("trust", id, "--yes")
    mine = books("mine")
    environment = mine.command("status")["environment"]
    covered = any(probe.is_relative_to(path) for path in environment["covered"])
    covered = covered and not any(probe.is_relative_to(p) for p in environment["not_covered"])
    mine.run("%restore made")
    assert mine.run("y").result == "'ran'"
    assert mine.run(f"import os; os.path.exists({str(probe)!r})").result == "True"
    assert not covered or not probe.exists(), "it ran inside, not on the host"


def test_01_a_byte_of_ones_own_was_altered(books: Any, tmp_path: Path) -> None:
    """What does not have its hash is never loaded: it costs its variable, or the restore."""
    notebook = books("own")
    notebook.run("import os; x = os.urandom(300_000); y = 1")
    notebook.run("%checkpoint A")
    assert durable(notebook, 2)["state"] == "ready"
    kill(notebook)
    blobs = [p for p in (tmp_path / "store").glob("namespaces/blobs/*/*") if p.is_file()]
    largest = max(blobs, key=lambda p: p.stat().st_size)
    good = {blob: blob.read_bytes() for blob in blobs}

    def alter(blob: Path) -> None:
        content = good[blob]
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        blob.write_bytes(content[:middle] + flipped + content[middle + 1 :])

    alter(largest)
    again = books("own")
    told = again.run("%restore A").out
    assert "not brought back: x: " in told and "is damaged" in told, told
    assert again.run("y, 'x' in dir()").result == "(1, False)"
    kill(again)
    largest.write_bytes(good[largest])
    for blob in set(blobs) - {largest}:
        alter(blob)
    again = books("own")
    again.run("here = 1")
    error = again.run("%restore A", ok=False).error
    assert "is damaged" in error and "Nothing was changed" in error, error
    assert again.run("here, 'y' in dir()").result == "(1, False)"


def test_01_where_one_is_damaged_the_nearest_whole_one_is_offered(
    books: Any, tmp_path: Path
) -> None:
    """For a variable, for all of them, and for files: by number, and what is offered works."""
    store = tmp_path / "store"

    def blobs() -> dict[Path, bytes]:
        found = [*store.glob("namespaces/blobs/*/*"), *store.glob("blobs/*/*")]
        return {path: path.read_bytes() for path in found if path.is_file()}

    def flip(path: Path, content: bytes) -> None:
        middle = len(content) // 2
        path.chmod(0o600)
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])

    notebook = books("own", "mine", "--Supervisor.durability=manual")
    cell = "import os; x = os.urandom(300_000); y = {}; _ = open('f', 'wb').write(b'{}' * 9)"
    known: list[dict[Path, bytes]] = [{}]
    for number in (1, 2, 3):
        notebook.run(cell.format(number, number))
        notebook.run("%checkpoint")
        assert durable(notebook, 2 * number)["state"] == "ready"
        known.append(blobs())
    kill(notebook)
    new = {path: data for path, data in known[3].items() if path not in known[2]}
    largest = max(new, key=lambda path: len(new[path]))
    flip(largest, new[largest])
    again = books("own", "mine", "--Supervisor.durability=manual")
    told = again.run("%restore 6").out
    assert "not brought back: x: " in told and "is damaged" in told, told
    assert "holds it whole is #4: `%restore 4 --vars x`" in told, told
    assert again.run("'x' in dir(), y").result == "(False, 3)"
    again.run("%restore 4 --vars x")
    assert again.run("len(x), y").result == "(300000, 3)"
    kill(again)
    for path, data in known[3].items():
        if path not in known[1]:
            flip(path, data)  # all that #6 and #4 do not share with #2
    again = books("own", "mine", "--Supervisor.durability=manual")
    for words in ("", " --only process"):
        error = again.run(f"%restore 6{words}", ok=False).error
        assert "is damaged" in error, error
        assert f"that is whole is #2: `%restore 2{words}`" in error, error
    # files are healed by the next capture of the same content, so another one may be nearer
    error = again.run("%restore 6 --only files", ok=False).error
    assert "is damaged" in error and "The nearest checkpoint that is whole is #" in error, error
    again.run("%restore 2")
    assert again.run("len(x), y, open('f').read()").result == "(300000, 1, '111111111')"


def test_02_labels_are_text(books: Any, tmp_path: Path) -> None:
    notebook = books("labels", "mine", "--Supervisor.auto=off")
    before = sorted(p.name for p in tmp_path.iterdir())
    for label in ("../../x", "-rf", "a\nb", "A" * 10_000_000):
        code = f"get_ipython().run_line_magic('checkpoint', '--label=' + {label!r})"
        if len(label) > 100:
            code = "get_ipython().run_line_magic('checkpoint', '--label=' + 'A' * 10_000_000)"
        cell = notebook.run(code, ok=False)
        assert cell.status == "ok" or "abel" in cell.error, cell.error[:300]
        if len(label) > 100:
            assert cell.status == "error" and len(cell.error) < 2000
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    found = [p for p in (tmp_path / "store").rglob("*") if p.name in ("x", "-rf")]
    assert found == []


def test_04_private_whatever_the_umask(books: Any, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        notebook = books("secrets")
        notebook.run(
            "import os; os.environ['API_KEY'] = 'TTSECRET-' + '4f9a1c' * 4; big = 'b' * 10**7"
        )
        notebook.run("%checkpoint A")
        assert durable(notebook, 2)["state"] == "ready"
        key = json.loads(Path(notebook.manager.connection_file).read_text())["key"]
        end(notebook)
        call("list", tmp_path / "secrets/n.ipynb", store=tmp_path / "store")
    finally:
        os.umask(old)
    for top in (tmp_path / "store", tmp_path / "keys" / "mine"):
        for path in [top, *top.rglob("*")]:
            mode = path.lstat().st_mode
            # what cells wrote, and the machine's root directory, keep their modes
            inside = {"layers", "root"} & set(path.relative_to(tmp_path).parts)
            if not inside and not stat.S_ISLNK(mode):
                assert not mode & 0o077, (path, oct(mode))
            if stat.S_ISREG(mode):
                assert key.encode() not in path.read_bytes()


def test_07_nothing_listens_but_the_kernel_itself(books: Any) -> None:
    notebook = books("ports")
    notebook.run("x = 1\n%checkpoint A")
    durable(notebook, 1)
    info = json.loads(Path(notebook.manager.connection_file).read_text())
    allowed = {v for k, v in info.items() if k.endswith("_port")}
    inodes = set()
    for fd in Path(f"/proc/{notebook.pid}/fd").iterdir():
        target = ""
        with contextlib.suppress(FileNotFoundError):  # it may be closed by now
            target = os.readlink(fd)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    listening = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{notebook.pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                listening.append((name, address, int(port, 16)))
    loopback = f"{struct.unpack('=I', bytes([127, 0, 0, 1]))[0]:08X}"
    assert listening and all(
        (name, address) == ("tcp", loopback) and port in allowed
        for name, address, port in listening
    ), listening


def test_07_the_old_key_opens_nothing(books: Any) -> None:
    first = books("keys")
    first.run("x = 1\n%checkpoint A")
    old = json.loads(Path(first.manager.connection_file).read_text())
    kill(first)
    second = books("keys")
    connection = Path(second.manager.connection_file)
    new = json.loads(connection.read_text())
    assert new["key"] != old["key"] and not connection.stat().st_mode & 0o077
    second.run("y = 1")
    session = second.client.session
    key, session.key = session.key, old["key"].encode()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{new['shell_port']}")
        session.send(socket, "execute_request", {"code": "y = 2", "silent": False})
        assert not socket.poll(500)
    session.key = key
    assert second.run("y").result == "1"


def test_08_what_runs_sandboxes_is_out_of_reach(books: Any, tmp_path: Path) -> None:
    notebook = books("inside")
    notebook.run("x = 1\n%checkpoint A")
    if not notebook.command("status")["environment"]["covered"]:
        pytest.skip("missing ability: overlays")
    store = tmp_path / "store"
    cell = notebook.run(
        "import os, socket, subprocess\nhits = []\n"
        "for p in ('/var/run/docker.sock', '/run/docker.sock', '/run/podman/podman.sock'):\n"
        "    try: s = socket.socket(socket.AF_UNIX); s.connect(p); hits.append(p)\n"
        "    except OSError: pass\n"
        "names = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        f"there = os.path.exists({str(store / 'timelines.sqlite')!r})\n"
        f"done = subprocess.run(['sh', '-c', 'echo x >> {store}/timelines.sqlite'])\n"
        "seen = b'jupyter' in open('/proc/1/cmdline', 'rb').read()\n"
        "print(hits, there, len(names) < 30, seen)"
    )
    assert cell.out.splitlines()[-1] == "[] False True False"
    pid = notebook.run("print(os.getpid())").out
    secrets = [notebook.manager.connection_file, str(tmp_path / "keys/mine"), str(store)]
    cell = notebook.run(
        "def content(path):\n"
        "    try: return os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read()\n"
        "    except OSError: return ''\n"
        f"print([bool(content(path)) for path in {secrets!r}])\n"
        "open('/proc/self/oom_score_adj').close()\n"
        "try: os.kill(1, 0)\n"
        "except OSError: pass\n"
        "try: os.kill(1, 9)\n"
        "except OSError: pass\n"
        "print(os.getpid())"
    )
    assert cell.out == f"[False, False, False]\n{pid}", cell.out
    assert notebook.run("x").result == "1", "the session is the one that it was"
    end(notebook)
    path = tmp_path / "inside/n.ipynb"
    keys = str(tmp_path / "keys/mine")
    assert "all is well" in call("check", store=store, JUPYTER_TIMETRAVEL_KEYS=keys)
    assert '"A"' in call("list", path, store=store)
