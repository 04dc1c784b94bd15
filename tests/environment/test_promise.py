"""The promise on real packages: a bad install and the loss of everything are taken back.

Needs a package index: these are the packages that people use, from where they get them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.listing import differences, listing
from tests.conftest import ROOT

pytestmark = pytest.mark.timeout(900)  # the packages are downloaded

OLD_NUMPY = "1.24.4" if sys.version_info < (3, 12) else "1.26.4"
"""Older than today's pandas can be used with."""

LOOK = "import numpy, pandas; print(numpy.__version__, pandas.Series([1, 2]).sum())"


@pytest.fixture
def python(home: Path, ability: Callable[[str, bool], None]) -> Path:
    """The interpreter of an environment with pandas, as a user has one."""
    made = home / "venv"
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(made)], check=True, timeout=120)
    pip = [str(made / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "ipykernel>=7.1", "pandas"], timeout=600, capture_output=True, text=True
    )
    ability(f"a package index: {done.stderr[-300:]}", done.returncode == 0)
    subprocess.run([str(made / "bin" / "python"), "-m", "compileall", "-q", str(made)], timeout=300)
    return made / "bin" / "python"


def test_a_bad_install_and_the_loss_of_everything(
    home: Path, python: Path, start: Callable[..., Any]
) -> None:
    (home / "notes.txt").write_text("mine")
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "id").write_text("secret")
    before = listing(home)
    notebook = start(
        "--python", str(python), env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    )
    run = notebook.run
    run("import subprocess, sys, pathlib, shutil, sysconfig, numpy, pandas")
    run(f"LOOK = {LOOK!r}")
    run(
        "fresh = lambda: subprocess.run("
        "[sys.executable, '-c', LOOK], capture_output=True, text=True)"
    )
    working = run("print(fresh().stdout.strip())").out.strip()
    assert working.endswith(" 3")
    run("frame = pandas.DataFrame({'a': range(1000)})\n%checkpoint works")

    out = run(
        "subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', "
        f"'--disable-pip-version-check', 'numpy=={OLD_NUMPY}'])\nprint(fresh().returncode)"
    ).out
    assert out.strip() == "1", "the old numpy was to break pandas in a new process"
    assert listing(home) == before
    # memory holds one version and the disk the other (environment-01): that comes back as it was
    both = "import importlib.metadata as md; print(numpy.__version__, md.version('numpy'))"
    new = working.split()[0]
    assert run(f"{both}\n%checkpoint mixed").out.splitlines()[0] == f"{new} {OLD_NUMPY}"
    report = run("%restore works").out
    assert f"numpy {OLD_NUMPY} → {new}" in report
    # a part that was not loaded yet is the one that fits
    assert run(f"import numpy.f2py, numpy.testing\n{both}").out == f"{new} {new}"
    run("%restore mixed")
    assert run(both).out == f"{new} {OLD_NUMPY}"
    run("%restore works")
    assert run("print(fresh().stdout.strip(), frame.a.sum())").out.strip() == f"{working} 499500"

    run("shutil.rmtree(sysconfig.get_paths()['purelib'])\nprint(fresh().returncode)")
    run("subprocess.run('rm -rf ~', shell=True, stderr=subprocess.DEVNULL)")
    assert run("print(pathlib.Path.home().exists())").out.strip() in ("False", "True")
    assert run("print((pathlib.Path.home() / 'notes.txt').exists())").out.strip() == "False"
    assert listing(home) == before
    run("%restore works")
    assert run("print(fresh().stdout.strip(), frame.a.sum())").out.strip() == f"{working} 499500"
    assert run("print((pathlib.Path.home() / 'notes.txt').read_text())").out.strip() == "mine"
    notebook.manager.shutdown_kernel()
    assert listing(home) == before


SYSTEM = [
    Path(path)
    for path in (
        "/etc",
        "/usr/bin",
        "/usr/share/doc",
        "/usr/share/info",
        "/var/lib/dpkg",
        "/var/lib/apt",
    )
]
"""Where the package puts its files, and where it is written down."""


@pytest.mark.root
def test_apt_get_is_taken_back(start_notebook: Callable[..., Any], ability: Any) -> None:
    """As root: what is installed is gone after a restore, and was never on this machine."""
    ability("apt-get", Path("/usr/bin/apt-get").exists())
    before = listing(*SYSTEM)
    notebook = start_notebook()
    found = notebook.command("status")["environment"]
    ability(f"overlays ({found['problem']})", "/usr" in found["covered"])
    told = "print(digest('/etc', '/var/lib/dpkg', '/var/lib/apt'))"
    inside = notebook.run(DIGEST + told).out
    notebook.run("%checkpoint clean")
    notebook.run(
        "!apt-get update -qq 2>&1 | tail -1; "
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends hello"
    )
    out = notebook.run("!hello").out
    ability("a mirror of Debian packages", "Hello, world" in out)
    assert differences(before, listing(*SYSTEM)) == []
    assert "hello" in notebook.run("%restore clean").out
    out = notebook.run("!command -v hello || echo gone; dpkg --audit; apt-get check -qq").out
    assert out.split() == ["gone"]
    assert notebook.run(told).out == inside
    notebook.run("!rm -rf /etc /usr/bin /var/lib/dpkg 2>/dev/null\nprint('all is lost')")
    assert differences(before, listing(*SYSTEM)) == []
    notebook.run("%restore clean")
    assert notebook.run(told).out == inside
    assert notebook.run("!apt-get check -qq && hello || echo gone").out.splitlines()[-1] == "gone"
    notebook.shut_down()
    assert differences(before, listing(*SYSTEM)) == []


DIGEST = """
def digest(*tops):
    import hashlib, os, stat
    found = hashlib.sha256()
    for top in tops:
        for parent, names, files in os.walk(top):
            names.sort()
            for path in (os.path.join(parent, name) for name in sorted([*names, *files])):
                st = os.lstat(path)
                told = (path, st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns)
                found.update(repr(told).encode())
                if stat.S_ISREG(st.st_mode): found.update(open(path, "rb").read())
    return found.hexdigest()
"""
"""For a cell: the content and attributes of all that is below some directories, as one text."""
