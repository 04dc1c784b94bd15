"""What cells cannot see or reach: the sandbox's init, its mounts, the store, the message key."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environment_tools import among_mounts

from kernel_runtime.store.paths import KEYS_VARIABLE

PROBE = r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def fails(name, *args):
    result = getattr(libc, name)(*args)
    return result < 0 and os.strerror(ctypes.get_errno())
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
"""


def test_no_capability_beyond_what_waking_needs(notebook: Any) -> None:
    notebook.run(PROBE)
    out = notebook.run("print(status['CapEff'], status['CapAmb'], status['NoNewPrivs'])").out
    effective, ambient, no_new = out.split()
    assert int(ambient, 16) == 0
    if os.geteuid() == 0:
        assert not int(effective, 16) & (1 << 21), "CAP_SYS_ADMIN"
        assert not int(effective, 16) & (1 << 19), "CAP_SYS_PTRACE"
        assert not int(effective, 16) & (1 << 2), "CAP_DAC_READ_SEARCH"
    else:
        assert int(effective, 16) == 1 << 40, "CAP_CHECKPOINT_RESTORE alone"
        assert no_new == "1"
        child = notebook.run("!grep Cap /proc/self/status").out
        assert {int(line.split()[1], 16) for line in child.splitlines() if line.strip()} <= {
            0,
            1 << 40,
        }
        assert "CapPrm:\t0000000000000000" in child


def test_mounts_and_init_are_out_of_reach(notebook: Any) -> None:
    notebook.run(PROBE)
    for call in (
        "fails('umount2', os.path.expanduser('~').encode(), 2)",
        "fails('umount2', b'/usr', 2)",
        "fails('mount', b'none', b'/usr', b'tmpfs', 0, None)",
        "fails('mount', b'none', b'/', None, 1 << 5, b'')",
        "fails('pivot_root', b'/', b'/') if hasattr(libc, 'pivot_root') else 'x'",
        "fails('setns', os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)",
    ):
        assert notebook.run(f"print({call})").out.strip() not in ("False", "0"), call
    for path in ("root", "cwd", "environ", "mem", "fd/3", "maps", "exe"):
        code = (
            "try:\n"
            f"    p = '/proc/1/{path}'\n"
            "    os.listdir(p) if os.path.isdir(p) else open(p, 'rb').read(1)\n"
            "    print('reached')\n"
            "except OSError as e: print('refused')"
        )
        assert notebook.run(code).out.strip() == "refused", path
    notebook.run("import signal; os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGSTOP)")
    notebook.run("x = 1\n%checkpoint alive")
    notebook.run("x = 2")
    notebook.run("%restore alive")
    assert notebook.run("print(x)").out.strip() == "1"


def test_the_store_and_the_key_cannot_be_seen(notebook: Any, tmp_path: Path) -> None:
    store, runtime = tmp_path / "store", tmp_path / "r"
    assert (store / "timelines.sqlite").exists()
    connection = Path(notebook.manager.connection_file)
    key = json.loads(connection.read_text())["key"]
    assert key
    for path in (store, runtime):
        code = (
            f"import os; p = {str(path)!r}\n"
            "try: print(os.listdir(p) if os.path.exists(p) else 'gone')\n"
            "except PermissionError: print('refused')"
        )
        assert notebook.run(code).out.strip() in ("gone", "refused", "[]"), path
    assert notebook.run(f"print(repr(open({str(connection)!r}).read()))").out.strip() == "''"
    code = f"""
import os
key = {key[::-1]!r}[::-1]  # not as it is: this cell is in the history
found = []
for parent, _, files in os.walk({str(tmp_path)!r}):
    for name in files:
        try:
            if key.encode() in open(os.path.join(parent, name), "rb").read(): found.append(name)
        except OSError: pass
print(found, key in str(dict(os.environ)))
"""
    assert notebook.run(code).out.strip() == "[] False"
    out = notebook.run(f"print(os.path.lexists({str(store)!r} + '/timelines.sqlite'))").out
    assert out.strip() == "False"
    notebook.run(f"import shutil; shutil.rmtree({str(store)!r}, ignore_errors=True)")
    assert (store / "timelines.sqlite").exists()
    notebook.run("y = 1")
    assert notebook.head()["number"] >= 1


def test_a_store_in_the_home_directory_is_hidden(
    home: Path, start_notebook: Callable[..., Any], ability: Callable[[str, bool], None]
) -> None:
    store = home / ".local" / "share" / "tt"
    keys = home / ".local" / "share" / "jupyter" / "timetravel" / "keys"
    (home / "mine").write_text("x")
    notebook = start_notebook(
        f"--Supervisor.store={store}",
        env={"HOME": str(home), "JUPYTER_TIMETRAVEL_STORE": str(store), KEYS_VARIABLE: str(keys)},
    )
    found = notebook.command("status")["environment"]
    ability(f"overlays ({found['problem']})", bool(found["covered"]))
    assert (store / "environments").is_dir()
    run = notebook.run
    assert keys.is_dir()  # with or without a key in it yet
    for path in (store, keys):
        assert run(f"import os; print(os.path.lexists({str(path)!r}))").out.strip() == "False"
    assert run("print(open(os.path.expanduser('~/mine')).read())").out.strip() == "x"
    run("!rm -rf ~ 2>/dev/null")
    run("%restore -2")
    assert run("print(open(os.path.expanduser('~/mine')).read())").out.strip() == "x"
    assert (store / "environments").is_dir()


CONNECT = """
import os, socket
def connect(path):
    with socket.socket(socket.AF_UNIX) as s:
        try: s.connect(path); s.send(b'x'); print('connected')
        except OSError: print('refused')
"""


@pytest.fixture
def listening() -> Iterator[Callable[[str], tuple[socket.socket, str]]]:
    """Listen at a name below a new directory in /tmp, which is the machine's own inside."""
    top = Path(tempfile.mkdtemp(prefix="tt-sockets-", dir="/tmp"))
    made = []

    def listen(name: str) -> tuple[socket.socket, str]:
        (top / name).parent.mkdir(exist_ok=True)
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].bind(str(top / name))
        made[-1].listen()
        made[-1].settimeout(60)
        return made[-1], str(top / name)

    yield listen
    for one in made:
        one.close()
    shutil.rmtree(top)


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ([], True),
        (["--Supervisor.sockets=none"], False),
        (['--Supervisor.workspace=["isolated"]'], False),
        (['--Supervisor.workspace=["isolated"]', "--Supervisor.sockets=host"], True),
    ],
    ids=["default", "none", "isolated", "isolated, host"],
)
def test_agents_and_the_desktop_are_passed_only_where_that_is_wanted(
    start: Callable[..., Any],
    listening: Callable[[str], tuple[socket.socket, str]],
    settings: list[str],
    reached: bool,
) -> None:
    paths = [listening(name)[1] for name in ("agent", "bus", "second-bus", "gpg", "run/any.sock")]
    agent, bus, second, gpg, within_runtime = paths
    named = {
        "SSH_AUTH_SOCK": agent,
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus},guid=1;unix:path={second}",
        "GPG_AGENT_INFO": f"{gpg}:123:1",
        "XDG_RUNTIME_DIR": str(Path(within_runtime).parent),
    }
    notebook = start(*settings, env=named)
    notebook.run(CONNECT)
    out = notebook.run(f"for path in {paths!r}: connect(path)").out
    assert out.split() == ["connected" if reached else "refused"] * len(paths)
    # what is hidden is so after a restore too, and the names stay as they are
    notebook.run("%restore 1")
    out = notebook.run(f"for path in {paths!r}: connect(path)").out
    assert out.split() == ["connected" if reached else "refused"] * len(paths)
    same = f"all(os.environ[name] == value for name, value in {named!r}.items())"
    assert notebook.run(same).result == "True"


@pytest.mark.parametrize("shown", [False, True])
def test_docker_is_reached_only_where_that_is_wanted(
    start: Callable[..., Any],
    listening: Callable[[str], tuple[socket.socket, str]],
    ability: Callable[[str, bool], None],
    shown: bool,
) -> None:
    """A socket of the test's own lies where Docker's does."""
    daemon, path = listening("docker")
    place = "/run/docker.sock"
    there = f"mount -t tmpfs -o mode=755 t /run && : > {place} && mount --bind {path} {place}"
    tried = subprocess.run([*among_mounts(there), "true"], check=False)
    ability("mounts in a namespace", tried.returncode == 0)
    notebook = start(f"--Supervisor.docker_socket={shown}", prefix=among_mounts(there))
    notebook.run(CONNECT)
    assert notebook.run(f"connect({place!r})").out == ("connected" if shown else "refused")
    if shown:
        with daemon.accept()[0] as client:
            assert client.recv(1) == b"x"


def test_where_nothing_can_be_hidden_that_is_said(
    start_notebook: Callable[..., Any],
    listening: Callable[[str], tuple[socket.socket, str]],
) -> None:
    agent = listening("agent")[1]
    options = ("--Supervisor.sandbox=none", "--Supervisor.sockets=none")
    notebook = start_notebook(*options, env={"SSH_AUTH_SOCK": agent})
    cell = notebook.run(f"{CONNECT}\nconnect({agent!r})")
    assert cell.out == "connected"
    assert "Supervisor.sockets=none has no effect" in cell.text("stderr")
    assert "Supervisor.sockets=none has no effect" in notebook.run("%timetravel status").out
