"""The cases of the sandbox, with real kernels. Number 01 is test_refusals.py; the ways to start a
kernel, of number 04, are test_ways_to_start.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import nbformat
import pytest
from environment_tools import checkpoint
from session_world import wait_until_stored

from tests.exhaustive import more
from tests.session_processes import init_of
from tests.waiting import PATIENCE, until

BAD = ("Value too large for defined data type", "Invalid argument")


# -- 02: who the user is ---------------------------------------------------------------------


def test_02_an_ordinary_user_and_the_systems_files(start, ability):
    ability("an ordinary user", os.geteuid() != 0)
    notebook = start(env={"LANG": "C", "LC_ALL": "C"})
    a = checkpoint(notebook, "before apt")
    commands = (
        "id -u",
        "echo x >> /usr/share/doc/coreutils/copyright",
        "mkdir /usr/lib/tt",
        "touch /etc/tt",
        "rm -f /etc/passwd",
        "chmod 600 /etc/passwd",
        "touch /var/lib/dpkg/status",
        "apt-get install -y --no-install-recommends hello 2>&1 | tail -3",
    )
    for command in commands:
        outside = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, timeout=60,
            env={**os.environ, "LANG": "C", "LC_ALL": "C"},
        )  # fmt: skip
        notebook.run(
            "import subprocess\n"
            f"done = subprocess.run(['sh', '-c', {command!r}], capture_output=True, text=True)"
        )
        inside = notebook.run("print(done.returncode, done.stdout + done.stderr)").out
        expected = f"{outside.returncode} {(outside.stdout + outside.stderr)}".strip()
        assert inside.strip() == expected, command
        assert not any(text in inside for text in BAD)
    notebook.run(f"%restore {a}")
    said = "system packages cannot be installed in this mode"
    assert said in notebook.run("%timetravel status").out
    assert notebook.command("status")["environment"]["system_packages"].startswith(said)


@pytest.mark.root
def test_02_root_has_every_id(notebook, home):
    assert "system packages" not in notebook.run("%timetravel status").out
    notebook.run(
        "import subprocess\n"
        "def sh(command):\n"
        "    done = subprocess.run(['sh', '-c', command], capture_output=True, text=True)\n"
        "    print(f'{done.returncode} {done.stdout}{done.stderr}'.strip())"
    )
    # a directory of another owner, and one that is sticky
    shared = home / "sticky"
    shared.mkdir()
    os.chown(shared, 42, 65534)
    shared.chmod(0o1777)
    (home / "x").write_text("x")
    (home / "theirs").write_text("x")
    os.chown(home / "theirs", 33, 33)
    a = checkpoint(notebook, "root")
    for command in (
        "mkdir -p /var/lib/apt/lists/partial && touch /var/lib/apt/lists/partial/x",
        f"touch {shared}/x && chown 33 {home}/x && chown 65000:65001 {home}/x",
        f"echo y >> {home}/theirs",
        "mkdir /usr/lib/tt && chown 12345 /usr/lib/tt",
    ):
        assert notebook.run(f"sh({command!r})").out == "0"
    assert notebook.run(f"sh('stat -c %u:%g {home}/x')").out == "0 65000:65001"
    notebook.run(f"%restore {a}")
    seen = notebook.run(f"sh('stat -c %u {home}/x; ls {shared}; ls -d /usr/lib/tt')").out
    assert seen.startswith("2 0\n") and "No such file" in seen
    assert os.stat(home / "x").st_uid == 0 and not os.path.exists("/usr/lib/tt")
    assert (home / "theirs").read_text() == "x"


@pytest.mark.root
@pytest.mark.parametrize("depth", [0, 1, 6])
def test_02_a_directory_of_the_user_in_one_of_roots(play, depth):
    """What is on the way to it cannot be copied up: EOVERFLOW, where it is not foreseen."""
    top = Path(tempfile.mkdtemp(prefix="tt-test-", dir="/opt"))
    try:
        top.chmod(0o755)
        mine = top.joinpath(*"abcdef"[:depth]) / "mine"
        mine.mkdir(parents=True)
        (mine / "f").write_text("1")
        for path in (mine, mine / "f"):
            os.chown(path, 12345, 12345)
        # it is found near the top, or because it is somewhere that users write
        notebook = play(**({"TMPDIR": str(mine)} if depth else {}))
        notebook.run(f"import os; os.chdir({str(mine)!r})")
        a = checkpoint(notebook, "mine")
        notebook.run("open('new', 'w').close(); open('f', 'w').write('2'); os.mkdir('d')")
        b = checkpoint(notebook, "written")
        look = "print([n for n in ('d', 'f', 'new') if os.path.exists(n)], open('f').read())"
        notebook.run(f"%restore {a}")
        assert notebook.run(look).out == "['f'] 1"
        notebook.run(f"%restore {b}")
        assert notebook.run(look).out == "['d', 'f', 'new'] 2"
        assert not (mine / "new").exists() and (mine / "f").read_text() == "1"
        notebook.manager.shutdown_kernel()  # its sockets are in there
    finally:
        shutil.rmtree(top)


# -- 04: process 1 ---------------------------------------------------------------------------


def marked(mark):
    """Pids of the processes that bear a mark in their environment, zombies aside."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found


def wait_until_gone(mark, but=()):
    """Until no process but those named bears the mark."""
    until(lambda: not set(marked(mark)) - {*but})


def test_04_zombies_interrupts_and_ends(start):
    mark = f"TT_MARK={uuid.uuid4().hex}"
    notebook = start(env=dict([mark.split("=")]))
    notebook.run("import os, subprocess, sys, time")
    notebook.run(
        "for _ in range(50): subprocess.run(['sh', '-c', '(sleep 0.1 &) ; exit'])\n"
        "def zombies(): return subprocess.getoutput(\"ps -eo stat | grep '^Z'\")\n"
        "end = time.monotonic() + 30\n"
        # one that has just ended is there until it is reaped, a moment later
        "while (left := zombies()) and time.monotonic() < end: time.sleep(.1)"
    )
    assert notebook.run("print(left)").out == ""
    for code, printed in (
        (
            "try: print('in'); time.sleep(600)\nexcept KeyboardInterrupt: print('interrupted')",
            "in\ninterrupted",
        ),
        ("!echo in; exec sleep 600", "in"),
    ):
        sent = notebook.send(code)
        notebook.until_printed(sent, "in")
        notebook.interrupt()
        cell = notebook.wait(sent)
        assert "\n".join(cell.out.replace("^C", "").split()) == printed
    until(lambda: notebook.run("print(subprocess.getoutput('pgrep -c sleep'))").out == "0")
    before = notebook.manager.provisioner.process
    notebook.manager.restart_kernel()
    assert before.wait(timeout=PATIENCE) == 0  # by itself, not killed
    notebook.client.wait_for_ready(timeout=60)
    # a crash is told with its signal
    crash = notebook.run("import os; os.kill(os.getpid(), 11)", ok=False)
    assert "SIGSEGV" in crash.error
    notebook.shut_down()
    wait_until_gone(mark)


def test_04_a_crash_is_told_with_its_signal_however_late_init_is(start):
    notebook = start()
    init = init_of(notebook.pid)
    init.suspend()
    try:
        sent = notebook.send("import os; os.kill(os.getpid(), 11)")
        time.sleep(4)  # as on a machine that has other things to do
    finally:
        init.resume()
    assert "SIGSEGV" in notebook.wait(sent).error


SERVER = """
import sys, time
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

class Manager(KernelManager):
    kernel_spec = KernelSpec(argv=sys.argv[1:], language="python", interrupt_mode="message")

manager = Manager()
manager.start_kernel()
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute(
    "import subprocess\\n"
    "for _ in range(2): subprocess.Popen(['sleep', '1000'], start_new_session=True)\\n"
    "print('runs', flush=True)\\nwhile True: pass"
)
while True:
    message = client.get_iopub_msg(timeout=60)
    if message["msg_type"] == "stream" and "runs" in message["content"]["text"]:
        break
print(manager.provisioner.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("killed", ["the server", "the supervisor"])
def test_04_killed_from_outside(start, home, killed, monkeypatch, tmp_path):
    mark = f"TT_MARK={uuid.uuid4().hex}"
    work = tmp_path / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "t.ipynb")
    named = {"JPY_SESSION_NAME": str(work / "t.ipynb"), "HOME": str(home)}
    argv = [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, *argv], stdout=subprocess.PIPE, text=True, cwd=work,
        env={**os.environ, **named, **dict([mark.split("=")])},
    )  # fmt: skip
    try:
        supervisor = int(server.stdout.readline())
        assert len(marked(mark)) > 4
        wait_until_stored(tmp_path / "store", 0)  # else there is nothing to go on with
        victim = server.pid if killed == "the server" else supervisor
        os.kill(victim, signal.SIGKILL)
        if killed == "the supervisor":
            wait_until_gone(mark, but=[server.pid])
        else:
            server.wait()
            wait_until_gone(mark)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    # its locks are free: the timeline is this notebook's again
    notebook = start(cwd=work, env=named)
    notebook.run("1")
    assert any(c["reason"] == "restart" for c in notebook.command("list")["checkpoints"])


# -- 05: owners and set-user-id --------------------------------------------------------------


def test_05_programs_that_check_owners(start, home, ability):
    ability("an ordinary user", os.geteuid() != 0)
    work = home / "work"
    work.mkdir()
    subprocess.run(["git", "init", "-q", work], check=True)
    notebook = start(cwd=work)
    notebook.run(
        "import subprocess\n"
        "def sh(command):\n"
        "    done = subprocess.run(['sh', '-c', command], capture_output=True, text=True)\n"
        "    print((done.stdout + done.stderr).strip())"
    )

    def same(command):
        outside = subprocess.run(
            ["sh", "-c", command], cwd=work, capture_output=True, text=True, timeout=60,
            env={**os.environ, "HOME": str(home)},
        )  # fmt: skip
        inside = notebook.run(f"sh({command!r})").out
        assert inside == (outside.stdout + outside.stderr).strip()
        return inside

    if shutil.which("ssh"):
        said = same("ssh -o BatchMode=yes -o ConnectTimeout=1 nosuch.invalid 2>&1 | tail -1")
        assert "Could not resolve" in said
    assert "On branch" in same("git -C . status 2>&1 | head -1")
    same("id -un; id -u; id -g")
    same("ls -ld ~ | awk '{print $3}'")
    same("stat -c '%U %a' .")
    assert notebook.run("sh('stat -c %U /etc/passwd')").out in ("root", "nobody")
    if shutil.which("sudo"):
        assert "sudo" in notebook.run("sh('sudo -n true 2>&1 | tail -1')").out
    if shutil.which("ping"):  # where every group may (ping_group_range); else it says why not
        said = notebook.run("sh('ping -c1 -W60 127.0.0.1 2>&1')").out
        reasons = (" 0% packet loss", "Operation not permitted", "cap_net_raw")
        assert any(reason in said for reason in reasons), said


def test_05_a_repository_of_roots(play, tmp_path):
    """git refuses it as it does outside, and takes it where the user says that it is safe."""
    repository = tmp_path / "repository"
    git = ["git", "-C", repository, "-c", "user.name=r", "-c", "user.email=r@example.org"]
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "by root"], check=True)
    notebook = play()
    command = f"git -C {repository} log -1 --format=%s"
    outside = subprocess.run(
        ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "sh", "-c", command],
        capture_output=True, text=True, timeout=60, cwd="/",
        env={**os.environ, "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    notebook.run(
        "import subprocess\ndone = subprocess.run(['sh', '-c', "
        f"{command!r}], capture_output=True, text=True, cwd='/')"
    )
    inside = eval(notebook.run("done.returncode, done.stdout, done.stderr").result)
    assert inside == (outside.returncode, outside.stdout, outside.stderr)
    assert "dubious ownership" in inside[2]
    notebook.run(f"!git config --global --add safe.directory {repository}")
    assert notebook.run(f"!git -C {repository} log -1 --format=%s").out.strip() == "by root"


# -- 07: shared memory and /tmp ---------------------------------------------------------------


def test_07_shared_memory_and_tmp(start, ability):
    st = os.statvfs("/dev/shm")
    size = st.f_frsize * st.f_blocks
    ability("300 MB of shared memory", st.f_frsize * st.f_bavail > 300 << 20)
    notebook = start()
    notebook.run("import os, multiprocessing.shared_memory as shm, mmap, tempfile")
    inside = int(notebook.run("st = os.statvfs('/dev/shm'); print(st.f_bsize * st.f_blocks)").out)
    assert inside >= size // 2
    notebook.run("a = shm.SharedMemory(create=True, size=256 << 20); a.buf[-1] = 7")
    a = checkpoint(notebook, "shm")
    notebook.run("a.buf[-1] = 9")
    notebook.run(f"%restore {a}")
    # the segment is there by its name too, and it is the same
    named = "b = shm.SharedMemory(name=a.name); print(a.buf[-1], b.buf[-1])"
    assert notebook.run(named).out == "7 7"
    assert notebook.run("a.buf[-1] = 8; print(b.buf[-1])").out == "8"
    # what is over the limit, or only left there by name, is named and not copied
    notebook.run(
        "open('/dev/shm/left', 'w').write('1')\n"
        "d = shm.SharedMemory(create=True, size=8 << 20); d.buf[:] = b'1' * (8 << 20)\n"
        "%timetravel config aside_limit=1000000"
    )
    said = notebook.run("%checkpoint large").out
    large = notebook.head()["number"]
    assert "shared memory /dev/shm/left" in said and "8388608 bytes: contents not kept" in said
    notebook.run("open('/dev/shm/left', 'w').write('2')")
    told = notebook.run(f"%restore {large}").out
    assert "not brought back: shared memory: /dev/shm/left" in told
    fresh = "c = shm.SharedMemory(create=True, size=256 << 20); c.buf[-1] = 1; print(c.buf[-1])"
    assert notebook.run(fresh).out == "1"
    inside_only = set(eval(notebook.run("os.listdir('/dev/shm')").result))
    assert len(inside_only) >= 3 and not inside_only & set(os.listdir("/dev/shm"))
    fd, path = tempfile.mkstemp(dir="/tmp")
    os.close(fd)
    try:
        seen = (
            f"print(os.path.exists({path!r}), os.access('/tmp', os.W_OK), os.environ.get('TMPDIR'))"
        )
        assert notebook.run(seen).out == f"True True {os.environ.get('TMPDIR')}"
    finally:
        os.unlink(path)
    notebook.shut_down()
    assert not inside_only & set(os.listdir("/dev/shm"))


# -- 10: sockets -----------------------------------------------------------------------------


def test_10_agents_and_sockets_of_the_desktop(start, tmp_path, ability):
    ability("ssh-agent", bool(shutil.which("ssh-agent") and shutil.which("ssh-add")))
    runtime = Path(tempfile.mkdtemp(prefix="tt-run-", dir="/tmp"))
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", runtime / "agent"], stdout=subprocess.DEVNULL
    )
    abstract = f"\0tt-{uuid.uuid4().hex}"
    addresses = [str(runtime / "t.sock"), tempfile.mktemp(prefix="tt-", dir="/tmp"), abstract]
    listening = []
    try:
        for address in addresses:
            listening.append(socket.socket(socket.AF_UNIX))
            listening[-1].bind(address)
            listening[-1].listen()
        listening.append(socket.create_server(("127.0.0.1", 0)))
        port = listening[-1].getsockname()[1]
        named = {
            "SSH_AUTH_SOCK": str(runtime / "agent"), "XDG_RUNTIME_DIR": str(runtime),
            "DISPLAY": ":7", "WAYLAND_DISPLAY": "wayland-7", "XAUTHORITY": "/tmp/x",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus",
        }  # fmt: skip
        # its socket is there before it listens
        add = {"args": ["ssh-add", "-q", key], "env": {**os.environ, **named}}
        until(lambda: subprocess.run(**add).returncode == 0, "no agent")
        notebook = start(env=named)
        notebook.run(f"import os, socket\naddresses = {addresses!r}; port = {port}")
        connect = (
            "for a in addresses:\n    s = socket.socket(socket.AF_UNIX)\n"
            "    try: s.connect(a); print('ok')\n    except OSError as e: print(repr(a), e)\n"
            "c = socket.create_connection(('127.0.0.1', port), 60); print('ok')"
        )
        assert notebook.run("!ssh-add -l | wc -l").out.strip() == "1"
        assert notebook.run(connect).out == "ok\nok\nok\nok"
        a = checkpoint(notebook, "agents")
        notebook.run(f"%restore {a}")
        assert notebook.run("!ssh-add -l | wc -l").out.strip() == "1"
        dead = notebook.run(
            "for one in (s, c):\n    try: print(one.send(b'x'))\n"
            "    except OSError as e: print('error')"
        )
        assert set(dead.out.split()) <= {"1", "error"}
        assert (
            notebook.run(f"all(os.environ[k] == v for k, v in {named!r}.items())").result == "True"
        )
        # a server in a cell is the host's to open
        notebook.run(
            "import threading\nfrom http.server import BaseHTTPRequestHandler, HTTPServer\n"
            "server = HTTPServer(('127.0.0.1', 0), BaseHTTPRequestHandler)\n"
            "threading.Thread(target=server.serve_forever, daemon=True).start()"
        )
        served = int(notebook.run("server.server_port").result)
        with socket.create_connection(("127.0.0.1", served), PATIENCE) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.0 501")
    finally:
        agent.kill()
        agent.wait()
        for one in listening:
            one.close()
        for address in addresses[:2]:
            with contextlib.suppress(OSError):
                os.unlink(address)
        shutil.rmtree(runtime)


# -- hosts of other kinds, played by root for an ordinary user (conftest.play) ---------------


@pytest.mark.root
def test_05_ssh_with_settings_in_a_directory(play, tmp_path, ability):
    ability("ssh", shutil.which("ssh") is not None)
    directory = tmp_path / "etc/ssh/ssh_config.d"
    directory.mkdir(exist_ok=True)
    (directory / "10-x.conf").write_text("Host nosuch.invalid\n    ConnectTimeout 1\n")
    notebook = play()
    said = notebook.run("!ssh -o BatchMode=yes nosuch.invalid 2>&1 | tail -1; id -un").out
    assert "Could not resolve hostname nosuch.invalid" in said
    assert said.split()[-1] == "ttcase"
    # ssh refuses files of anybody but root and the user: the user has a copy
    assert notebook.run("!stat -c '%U' /etc/ssh/ssh_config.d/10-x.conf").out.strip() == "ttcase"


RESOLV = """
import os, socket
path = "/etc/resolv.conf"
def look():
    text = open(path).read()[:20] if os.path.exists(path) else None
    return os.readlink(path) if os.path.islink(path) else None, text
"""


@pytest.mark.root
@pytest.mark.parametrize("who", ["root", "ordinary user"])
@pytest.mark.parametrize(
    "state", ["file", "link to run", "another mount", *more("two links", "dangling", "missing")]
)
def test_08_resolv_conf(play, start, tmp_path, state, who, ability):
    resolv = tmp_path / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    mounts = "mount -t tmpfs -o mode=755 t /run && mkdir -p /run/systemd/resolve"
    stub = "/run/systemd/resolve/stub-resolv.conf"
    mounts += f" && echo nameserver 127.0.0.53 > {stub}"
    mounts += " && mount -t tmpfs -o mode=755 t /mnt && mkdir /mnt/wsl"
    mounts += " && echo nameserver 10.0.0.1 > /mnt/wsl/resolv.conf"
    link, text = {
        "file": (None, "nameserver 9.9.9.9\n"),
        "link to run": (f"..{stub}", "nameserver 127.0.0.5"),
        "another mount": ("/mnt/wsl/resolv.conf", "nameserver 10.0.0.1\n"),
        "two links": ("static/resolv.conf", "nameserver 127.0.0.5"),
        "dangling": ("/run/nothing", None),
        "missing": (None, None),
    }[state]
    if state == "two links":
        (tmp_path / "etc/static").mkdir()
        (tmp_path / "etc/static/resolv.conf").symlink_to(stub)
    if link:
        resolv.symlink_to(link)
    elif text:
        resolv.write_text(text)
    with open(tmp_path / "etc/hosts", "a") as hosts:  # no server answers at these addresses
        hosts.write(f"\n127.0.1.1 {socket.gethostname()}\n")
    if who == "root":
        prefix = (
            "unshare",
            "-m",
            "sh",
            "-c",
            f'mount --bind "$ETC" /etc && {mounts} && exec "$@"',
            "sh",
        )
        notebook = start(prefix=prefix, env={"ETC": str(tmp_path / "etc")})
    else:
        notebook = play(mounts)
    notebook.run(RESOLV)
    assert eval(notebook.run("look()").result) == (link, text)
    cell = notebook.run(
        "try: print(socket.getaddrinfo('localhost', 80)[0][4][0])\nexcept OSError as e: print(e)"
    )
    assert cell.out in ("127.0.0.1", "::1")
    notebook.run("socket.getaddrinfo(socket.gethostname(), 443)")
    if text is None:
        return
    # another network: the file that the links lead to is replaced on the host
    new = {
        "file": "/etc/resolv.conf", "link to run": stub, "two links": stub,
        "another mount": "/mnt/wsl/resolv.conf",
    }[state]  # fmt: skip
    code = f"echo nameserver 1.2.3.4 > {new}.new && chmod 644 {new}.new && mv {new}.new {new}"
    command = ["nsenter", "-t", str(notebook.pid), "-m", "sh", "-c", code]
    subprocess.run(command, check=True, timeout=60)
    until(lambda: eval(notebook.run("look()").result) == (link, "nameserver 1.2.3.4\n"))


# -- 11: the home directory on a file server -------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("store", ["there too", "on a local disk"])
def test_11_the_workspace_on_a_file_server(file_server, play, store):
    mounted, source = file_server()
    where = {"JUPYTER_TIMETRAVEL_STORE": str(mounted / "store")} if store == "there too" else {}
    notebook = play(covered=not where, W=str(mounted / "work"), **where)
    cell = notebook.run("import os\nopen('a', 'w').write('1'); f = open('a')")
    assert ("is on fuse" in cell.text("stderr")) == bool(where)
    a = checkpoint(notebook, "nfs")
    notebook.run("os.unlink('a'); open('b', 'w').write('2')")
    assert any(name.startswith(".nfs") for name in os.listdir(source / "work"))
    notebook.run(f"%restore {a}")
    seen = (
        "print(sorted(n for n in os.listdir('.') if n[:4] != '.nfs'), open('a').read(), f.read())"
    )
    assert notebook.run(seen).out == "['a'] 1 1"


@pytest.mark.root
@pytest.mark.slow
def test_11_many_small_files_far_away(file_server, play, tmp_path):
    mounted, source = file_server(0.001, tmp_path / "requests")
    for n in range(1000):
        (source / f"work/{n}").write_text(str(n))
        os.chown(source / f"work/{n}", 12345, 12345)
    notebook = play(W=str(mounted / "work"))
    before = (tmp_path / "requests").read_text().count("\n")
    checkpoint(notebook, "all of them")
    asked = (tmp_path / "requests").read_text().count("\n") - before
    assert asked < 6_000  # 30 s for 5,000 files, where each request takes a millisecond
