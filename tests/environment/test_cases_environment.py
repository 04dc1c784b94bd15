"""The cases of packages and settings, with real kernels that run from a virtual environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import ipykernel
import nbformat
import pytest
import traitlets
from environment_tools import (
    checkpoint,
    make_venv,
    make_wheel,
    pip_install,
    site_packages,
    tree,
)

from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def wheels(tmp_path):
    """tinynum 1.0 and 2.0."""
    for version in ("1.0", "2.0"):
        files = {
            "tinynum/__init__.py": f"__version__='{version}'\nABI=int({version[0]})\n",
            "tinynum/late.py": "from tinynum import ABI\n"
            f"BUILT={version[0]}\nassert ABI==BUILT, 'size changed'\n",
        }
        make_wheel(tmp_path / "wheels", "tinynum", version, files)
    return tmp_path / "wheels"


@pytest.fixture
def venv(home):
    """An environment that kernels can run from."""
    make_venv(home / "E")
    return home / "E"


@pytest.fixture
def start_in(start, venv):
    """Start a kernel whose cells run in the environment."""

    def start_in_venv(*arguments, **options):
        return start(f"--python={venv}/bin/python", *arguments, **options)

    return start_in_venv


def installer(wheels: Path) -> str:
    """A cell that defines what the cases call ``pip install``, and more."""
    return (
        "import sys, os, subprocess\n"
        "def pip(*args, python=sys.executable):\n"
        "    command = [python, '-m', 'pip', *args]\n"
        "    return subprocess.run(command, capture_output=True, text=True)\n"
        "def install(*args, python=sys.executable):\n"
        f"    done = pip('install', '-q', '--no-index', '--find-links', {str(wheels)!r}, *args,"
        " python=python)\n"
        "    assert done.returncode == 0, done.stderr\n"
        "def fresh(code):\n"
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "    return (done.stdout + done.stderr).strip().split('\\n')[-1]\n"
    )


def test_01_a_new_version_on_disk_and_the_old_one_loaded(start_in, venv, wheels):
    pip_install(venv / "bin/python", wheels, "tinynum==1.0")
    before = tree(venv)
    notebook = start_in()
    notebook.run(installer(wheels))
    notebook.run("import tinynum, importlib.metadata as md\ndata = list(range(5))")
    a = checkpoint(notebook, "v1 loaded")
    late = "try: import tinynum.late\nexcept AssertionError as e: print(e)"
    assert notebook.run(f"install('tinynum==2.0')\n{late}").out == "size changed"
    b = checkpoint(notebook, "mixed")
    report = notebook.run(f"%restore {a}")
    assert "tinynum 2.0 → 1.0" in report.out
    assert (
        notebook.run(
            "import tinynum.late\n"
            "print(tinynum.__version__, tinynum.late.BUILT, md.version('tinynum'), data,"
            " fresh('import tinynum; print(tinynum.__version__)'))"
        ).out
        == "1.0 1 1.0 [0, 1, 2, 3, 4] 1.0"
    )
    listed = notebook.run("print(pip('list').stdout, pip('check').stdout)").out
    assert [line.split() for line in listed.splitlines() if "tinynum" in line] == [
        ["tinynum", "1.0"]
    ]
    notebook.run(f"%restore {b}")
    assert notebook.run(f"print(tinynum.__version__, md.version('tinynum'))\n{late}").out == (
        "1.0 2.0\nsize changed"
    )
    assert tree(venv) == before


def test_02_every_way_to_install(home, start_in, venv, wheels, tmp_path):
    # one that has a user site: pip refuses --user elsewhere
    (venv / "pyvenv.cfg").write_text(
        (venv / "pyvenv.cfg").read_text().replace("site-packages = false", "site-packages = true")
    )
    pip_install(venv / "bin/python", wheels, "tinynum==1.0")
    other = make_venv(home / "P2")
    script = other.parent / "pip"
    script.write_text(f"#!{other}\nimport runpy; runpy.run_module('pip', run_name='__main__')\n")
    script.chmod(0o755)
    (home / "opt").mkdir()
    (home / ".local").mkdir()
    (home / ".local/mine").write_text("1")
    target = home / "opt/test_target"
    host = tree(home)
    path = f"{other.parent}:{os.environ['PATH']}"
    notebook = start_in(env={"PATH": path})
    notebook.run(installer(wheels))
    path_before = notebook.run("sys.path").result
    a = checkpoint(notebook, "clean")
    options = f"-q --no-index --find-links {wheels}"
    notebook.run(f"!pip install {options} tinynum==2.0 2>&1")
    notebook.run(f"%pip install --user {options} tinynum==2.0 --ignore-installed")
    notebook.run("install('--target', 'vendored', 'tinynum==2.0')")
    notebook.run(f"install('--target', {str(target)!r}, 'tinynum==2.0')")
    notebook.run("import site; sys.path.append(site.getusersitepackages())")
    find = f"!find ~/.local vendored {target} {home}/P2 -path '*tinynum/__init__.py' 2>/dev/null"
    assert len(notebook.run(find).out.split()) == 4
    notebook.run(f"%restore {a}")
    assert notebook.run(find).out == ""
    gone = f"!{other} -c 'import tinynum' 2>&1 | tail -1"
    assert "No module named 'tinynum'" in notebook.run(gone).out
    now = notebook.run("print(fresh('import tinynum; print(tinynum.__version__)'))").out
    assert now == "1.0"
    assert notebook.run("sys.path").result == path_before
    assert not (notebook.cwd / "vendored").exists()
    assert tree(home) == host


def test_04_two_packages_that_own_the_same_files(start_in, venv, tmp_path):
    wheels = tmp_path / "wheels"
    for name in ("alpha", "beta"):
        files = {"shared/__init__.py": "", "shared/core.py": f'w="{name}"\n'}
        make_wheel(wheels, name, "1.0", files)
    notebook = start_in()
    notebook.run(installer(wheels))
    notebook.run("install('alpha')")
    a = checkpoint(notebook, "alpha only")
    notebook.run("install('beta')")
    b = checkpoint(notebook, "both")
    look = "print(fresh('import shared.core; print(shared.core.w)'))"
    broken = notebook.run(f"pip('uninstall', '-qy', 'beta')\n{look}").out
    assert broken == "ModuleNotFoundError: No module named 'shared'"
    c = checkpoint(notebook, "broken")
    listing = (
        "names = [line.split()[0] for line in pip('list').stdout.splitlines()]\n"
        "print([name for name in names if name in ('alpha', 'beta')])"
    )
    for number, word, installed in (
        (a, "alpha", ["alpha"]),
        (c, broken, ["alpha"]),
        (b, "beta", ["alpha", "beta"]),
        (a, "alpha", ["alpha"]),
        (b, "beta", ["alpha", "beta"]),
    ):
        notebook.run(f"%restore {number}")
        assert notebook.run(look).out == word
        assert notebook.run(listing).out == str(installed)


@pytest.mark.parametrize("how", ["captured", "excluded", "prefix"])
def test_08_stale_bytecode(start, home, how):
    (home / "caches").mkdir()
    prefix = str(home / "caches") if how == "prefix" else ""
    exclude = ["--Supervisor.workspace_exclude=__pycache__"] if how == "excluded" else []
    notebook = start(*exclude, env={"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": prefix})
    notebook.run(MODULE.format(where="."))
    bytecode(notebook, f"!rm -rf __pycache__ {home}/caches/*")
    assert (notebook.cwd / "__pycache__").exists() == (how != "prefix")


MODULE = """
import os, sys, subprocess
where = {where!r}
def put(v, t):
    with open(f'{{where}}/mm.py','w') as f: f.write(f'V={{v}}\\n')
    os.utime(f'{{where}}/mm.py', (t, t))
def run():
    command = [sys.executable, '-c', 'import mm; print(mm.V)']
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
"""


def bytecode(notebook, clean):
    assert notebook.run("put(1, 1700000000.1); print(run())").out == "1"
    a = checkpoint(notebook, "one")
    assert notebook.run(f"{clean}\nput(2, 1700000000.9); print(run())").out == "2"
    b = checkpoint(notebook, "two")
    for number, value in ((a, "1"), (b, "2"), (a, "1")):
        notebook.run(f"%restore {number}")
        assert notebook.run("print(run())").out == value


@pytest.mark.parametrize("prefix", [False, True])
def test_08_stale_bytecode_in_site_packages(start_in, venv, home, prefix):
    caches = home / "caches"
    caches.mkdir()
    env = {"PYTHONPYCACHEPREFIX": str(caches)} if prefix else {}
    notebook = start_in(env={"PYTHONDONTWRITEBYTECODE": "", **env})
    where = site_packages(venv)
    notebook.run(MODULE.format(where=str(where)))
    bytecode(notebook, f"!rm -rf {where}/__pycache__/mm.* {caches}/*")
    top = str(caches if prefix else where)
    found = f"[f for _, _, fs in os.walk({top!r}) for f in fs if f.startswith('mm.cpython')]"
    assert notebook.run(f"len({found})").result == "1"


BREAK = (
    "import pathlib, traitlets, ipykernel\n"
    "for m in (traitlets, ipykernel):\n"
    "    pathlib.Path(m.__file__).write_text(\"raise ImportError('broken by install')\\n\")"
)


def test_05_the_kernels_own_packages_are_broken(start, venv, home):
    """The supervisor and the cells run from the environment that a cell breaks."""
    for module in (traitlets, ipykernel):
        source = Path(module.__file__).parent
        shutil.copytree(source, site_packages(venv) / source.name)
    work = home / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "n.ipynb")
    before = tree(venv)
    instead = ("sh", "-c", f'shift; exec {venv}/bin/python "$@"', "sh")
    named = {"JPY_SESSION_NAME": str(work / "n.ipynb"), "PYTHONDONTWRITEBYTECODE": "1"}
    notebook = start(prefix=instead, cwd=work, env=named, listed=True)
    a = checkpoint(notebook, "works")

    def command(*words):
        """From a terminal, with the Python of the same environment as it is on the host."""
        code = "import sys; from jupyter_timetravel.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [venv / "bin/python", "-c", code, *map(str, words)],
            capture_output=True, text=True, timeout=100, env={**os.environ, **named},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    notebook.run(BREAK)
    notebook.run(f"%restore {a}")
    fresh = (
        "import subprocess, sys\n"
        "code = 'import traitlets, ipykernel.zmqshell'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True).returncode)"
    )
    assert notebook.run(fresh).out == "0"
    notebook.run(BREAK)
    assert notebook.run(fresh).out == "1"
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=60)
    cell = notebook.run("print(1)", ok=False)
    assert "broken by install" in cell.error and "%restore" in cell.error
    # the restarted kernel runs on meanwhile, and is an ordinary one afterwards
    assert "works" in command("list", work / "n.ipynb")
    assert "Python runs again" in command("restore", work / "n.ipynb", a)
    assert notebook.run(f"import traitlets\n{fresh}").out == "0"
    # and with none
    notebook.run(BREAK)
    notebook.head()
    notebook.manager.shutdown_kernel()
    assert "works" in command("list", work / "n.ipynb")
    assert f"restored the files of #{a} " in command("restore", work / "n.ipynb", a)
    again = start(prefix=instead, cwd=work, env=named)
    assert again.run(fresh).out == "0"
    assert tree(venv) == before


# -- as root of the sandbox; the host must not notice ---------------------------------------


def host_files(*paths):
    """What of the host a session as root must leave alone."""
    found = {}
    for top in paths:
        for parent, _, names in os.walk(top):
            for name in names:
                path = os.path.join(parent, name)
                st = os.lstat(path)
                content = None
                if os.path.isfile(path) and not os.path.islink(path):
                    content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                found[path] = (st.st_ino, st.st_mode, st.st_mtime_ns, content)
    return found


POSTINST = """#!/bin/sh
set -e
adduser --system --quiet ttuser; touch /usr/share/tt-a/waits
[ -z "$HANGS" ] || sleep 600
ldconfig
update-alternatives --quiet --install /usr/bin/ttedit ttedit /bin/cat 10
"""


@pytest.fixture
def deb(home, ability):
    """The package tt-a: 2,000 files and a script."""
    for tool in ("dpkg-deb", "apt-get", "adduser"):
        ability(tool, shutil.which(tool, path="/usr/sbin:/usr/bin") is not None)
    top = home / "tt-a"
    (top / "DEBIAN").mkdir(parents=True)
    (top / "usr/share/tt-a").mkdir(parents=True)
    for n in range(2000):
        (top / f"usr/share/tt-a/{n}").write_text(str(n))
    (top / "DEBIAN/control").write_text(
        "Package: tt-a\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: test\n"
    )
    (top / "DEBIAN/postinst").write_text(POSTINST)
    (top / "DEBIAN/postinst").chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", top, home / "tt-a.deb"], check=True, stdout=-3)
    return home / "tt-a.deb"


@pytest.mark.root
def test_07_dpkg_killed_in_the_middle(start, deb):
    before = host_files("/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/debconf")
    notebook = start(
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
    )
    notebook.run(
        "import hashlib, os, pathlib\n"
        "def books():\n"
        "    tops = ('/etc', '/var/lib/dpkg', '/var/lib/apt', '/var/cache/debconf')\n"
        "    paths = [p for t in tops for p in pathlib.Path(t).rglob('*')]\n"
        "    links = {str(p): os.readlink(p) for p in paths if p.is_symlink()}\n"
        "    files = [p for p in paths if p.is_file() and not p.is_symlink()]\n"
        "    digests = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}\n"
        "    return {**links, **digests}\n"
        "clean = books()"
    )
    a = checkpoint(notebook, "apt clean")
    notebook.run(
        "import subprocess, time, signal\n"
        f"p = subprocess.Popen('HANGS=1 dpkg -i {deb}', shell=True, start_new_session=True,"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "while not os.path.exists('/usr/share/tt-a/waits'): time.sleep(0.01)\n"
        "os.killpg(p.pid, signal.SIGKILL); p.wait()"
    )
    broken = notebook.run("!dpkg --audit; getent passwd ttuser").out
    assert "tt-a" in broken and "ttuser:" in broken
    assert notebook.run("books() == clean").result == "False"
    notebook.run(f"%restore {a}")
    differ = "now = books(); print([p for p in {*clean, *now} if clean.get(p) != now.get(p)])"
    assert notebook.run(differ).out == "[]"
    seen = notebook.run(
        "!dpkg --audit | wc -l; getent passwd ttuser | wc -l; ls /usr/bin/ttedit 2>&1"
    ).out.split("\n")
    assert [line.strip() for line in seen[:2]] == ["0", "0"] and "No such file" in seen[2]
    done = notebook.run(f"!dpkg -i {deb} >/dev/null && dpkg -s tt-a | grep ^Status")
    assert done.out.strip() == "Status: install ok installed"
    assert notebook.run("os.readlink('/etc/alternatives/ttedit')").result == "'/bin/cat'"
    notebook.run(f"%restore {a}")
    assert notebook.run(differ).out == "[]"
    assert host_files("/etc", "/var/lib/dpkg", "/var/lib/apt", "/var/cache/debconf") == before


NET = ("/etc/hosts", "/etc/resolv.conf")


@pytest.mark.root
def test_10_editing_hosts_and_resolv_conf(start):
    before = host_files("/etc")
    notebook = start()
    a = checkpoint(notebook, "net")
    assert (
        notebook.run("!sed -i '1i 127.0.0.1 tt.example' /etc/hosts; echo rc=$?").out.strip()
        == "rc=0"
    )
    moved = "!r=$(mktemp) && cp /etc/resolv.conf $r && mv $r /etc/resolv.conf; echo rc=$?"
    assert notebook.run(moved).out.strip() == "rc=0"
    assert notebook.run("!getent hosts tt.example").out.split() == ["127.0.0.1", "tt.example"]
    notebook.run(f"%restore {a}")
    look = "!getent hosts tt.example | wc -l; grep -c tt.example /etc/hosts"
    assert notebook.run(look).out.split() == ["0", "0"]
    assert host_files("/etc") == before
    # untouched they follow the host, within a few seconds
    assert notebook.run("!readlink /etc/resolv.conf; true").out == "".join(
        [os.readlink("/etc/resolv.conf")] if os.path.islink("/etc/resolv.conf") else []
    )


@pytest.mark.root
@pytest.mark.parametrize("linked", [False, True], ids=["file", "link to run"])
def test_10_a_restore_says_that_the_resolver_is_another_now(start, tmp_path, linked):
    subprocess.run(["cp", "-a", "/etc", tmp_path / "etc"], check=True)
    resolv, target = tmp_path / "etc/resolv.conf", "/etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    mounts = 'mount --bind "$ETC" /etc && mount -t tmpfs -o mode=755 t /run && mkdir /run/net'
    if linked:
        target = "/run/net/resolv.conf"
        resolv.symlink_to(target)
    mounts += f" && echo nameserver 10.0.0.1 > {target}"
    prefix = ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    notebook = start(prefix=prefix, env={"ETC": str(tmp_path / "etc")})

    def replace_on_the_host(text):
        code = f"echo '{text}' > {target}.new && mv {target}.new {target}"
        command = ["nsenter", "-t", str(notebook.pid), "-m", "sh", "-c", code]
        subprocess.run(command, check=True, timeout=60)

    def restore(number):
        """What is said by the time that it is known."""
        cell = notebook.run(f"%restore {number}")
        return notebook.until_said("the session's own", cell.text("stderr"))

    untouched = checkpoint(notebook, "untouched")
    edit = "!r=$(mktemp) && (echo '# mine'; cat /etc/resolv.conf) > $r && mv $r /etc/resolv.conf"
    notebook.run(edit)
    edited = checkpoint(notebook, "edited")
    replace_on_the_host("nameserver 10.0.0.2")
    told = restore(edited)
    assert "/etc/resolv.conf is the session's own" in told and "names may not be found" in told
    assert "# mine" in notebook.run("!cat /etc/resolv.conf").out
    # one that the session has not touched follows, and there is nothing to say of it
    cell = notebook.run(f"%restore {untouched}")
    end = time.monotonic() + PATIENCE
    seen = ""
    while "10.0.0.2" not in seen:
        assert time.monotonic() < end, seen
        seen += notebook.run("!cat /etc/resolv.conf").out
        time.sleep(0.2)
    said = "".join(m["content"].get("text", "") for m in notebook.settle())
    assert f"restored #{untouched}: /etc/resolv.conf" not in cell.text("stderr") + said


def test_10_as_an_ordinary_user(notebook, E):
    for path in NET:
        shutil.copy2(path, E)
    a = checkpoint(notebook, "net")
    edit = f"!sed -i '1i 127.0.0.1 tt.example' {E}/hosts; echo rc=$?"
    assert notebook.run(edit).out.strip() == "rc=0"
    moved = f"!r=$(mktemp) && cp {E}/resolv.conf $r && mv $r {E}/resolv.conf; echo rc=$?"
    assert notebook.run(moved).out.strip() == "rc=0"
    before = {path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in NET}
    edit = "!sed -i '1i 127.0.0.1 tt.example' /etc/hosts; echo rc=$?"
    assert "rc=0" not in notebook.run(edit).out
    notebook.run(f"%restore {a}")
    assert notebook.run(f"!grep -c tt.example {E}/hosts").out.strip() == "0"
    assert {path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for path in NET} == before


def test_11_what_is_written_under_the_home_directory(start, home):
    """The table of docs/environment.md."""
    work, elsewhere = home / "work", home / "elsewhere"
    for directory in (work, elsewhere, home / "results"):
        directory.mkdir()
    (home / ".ssh").mkdir()
    (home / ".ssh/known_hosts").write_text("host\n")
    for path in (work / "a.ipynb", work / "b.ipynb", elsewhere / "c.ipynb"):
        nbformat.write(nbformat.v4.new_notebook(), path)

    def open_notebook(path):
        return start(cwd=path.parent, env={"JPY_SESSION_NAME": str(path)})

    notebook = open_notebook(work / "a.ipynb")
    cell = notebook.run(
        "import os, pathlib\nh = pathlib.Path.home()\n"
        "(h/'.cache/hub').mkdir(parents=True)\n"
        "(h/'.cache/hub/model.bin').write_bytes(os.urandom(5<<20))\n"
        "(h/'.token').write_text('t'); os.chmod(h/'.token', 0o600)\n"
        "(h/'results/run.csv').write_text('1\\n')"
    )
    a = checkpoint(notebook, "home")
    told = notebook.until_said("%timetravel apply", cell.text("stderr"))
    assert "seen by this notebook only" in told, told
    notebook.settle(1.0)
    # at once: the host sees nothing of it
    written = [home / ".cache/hub/model.bin", home / ".token", home / "results/run.csv"]
    assert not any(path.exists() for path in written)
    # another program goes on writing to the home meanwhile
    (home / ".ssh/known_hosts").write_text("host\nanother\n")
    cell = notebook.run("(h/'results/run2.csv').write_text('2\\n')")
    late = [m["content"]["text"] for m in notebook.settle(1.0) if m["msg_type"] == "stream"]
    assert "seen by this notebook only" not in cell.text("stderr") + "".join(late)
    notebook.run(f"%restore {a}")
    there = "sorted(p.name for p in (h/'results').iterdir()), (h/'.token').read_text()"
    assert notebook.run(there).result == "(['run.csv'], 't')"
    assert (home / ".ssh/known_hosts").read_text() == "host\nanother\n"
    assert "another" in notebook.run("(h/'.ssh/known_hosts').read_text()").result
    # other notebooks do not see it
    for path in (work / "b.ipynb", elsewhere / "c.ipynb"):
        other = open_notebook(path)
        seen = "import pathlib; h = pathlib.Path.home()\n[p.name for p in h.iterdir()]"
        assert ".token" not in other.run(seen).result
        other.manager.shutdown_kernel()
    # it survives the end of the kernel
    notebook.manager.shutdown_kernel()
    assert not any(path.exists() for path in written)
    again = open_notebook(work / "a.ipynb")
    again.run("import pathlib; h = pathlib.Path.home()")
    assert again.run(there).result == "(['run.csv'], 't')"
    assert again.run("(h/'.token').stat().st_mode & 0o777 == 0o600").result == "True"
    # and goes to the host with one command
    listed = again.run("%timetravel files").out
    assert "results" in listed
    again.run(f"%timetravel apply {home}/results {home}/.token")
    assert (home / "results/run.csv").read_text() == "1\n"
    assert (home / ".token").stat().st_mode & 0o777 == 0o600
