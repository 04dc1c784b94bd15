"""The promise on real packages: a bad install and the loss of everything are taken back.

Needs a package index: these are the packages that people use, from where they get them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.timeout(900)  # the packages are downloaded

OLD_NUMPY = "1.24.4" if sys.version_info < (3, 12) else "1.26.4"
"""Older than today's pandas can be used with."""

LOOK = "import numpy, pandas; print(numpy.__version__, pandas.Series([1, 2]).sum())"


def listing(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory with what can be told of it: type, mode, times, content."""
    found: dict[str, tuple[Any, ...]] = {}
    for parent, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            path = os.path.join(parent, name)
            st = os.lstat(path)
            content = ""
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as f:
                    content = (
                        hashlib.file_digest(f, "sha256").hexdigest()
                        if hasattr(hashlib, "file_digest")
                        else hashlib.sha256(f.read()).hexdigest()
                    )
            found[os.path.relpath(path, directory)] = (
                st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ino, content,
            )  # fmt: skip
    return found


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
    report = run("%restore works").out
    assert f"numpy {OLD_NUMPY} → {working.split()[0]}" in report
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


@pytest.mark.root
def test_apt_get_is_taken_back(start_notebook: Callable[..., Any], ability: Any) -> None:
    """As root: what is installed is gone after a restore, and was never on this machine."""
    books = Path("/var/lib/dpkg/status")
    ability("apt-get", Path("/usr/bin/apt-get").exists())
    notebook = start_notebook()
    found = notebook.command("status")["environment"]
    ability(f"overlays ({found['problem']})", "/usr" in found["covered"])
    before = books.read_bytes()
    notebook.run("%checkpoint clean")
    notebook.run(
        "!apt-get update -qq 2>&1 | tail -1; "
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends hello"
    )
    out = notebook.run("!hello").out
    ability("a mirror of Debian packages", "Hello, world" in out)
    assert books.read_bytes() == before and not Path("/usr/bin/hello").exists()
    assert "hello" in notebook.run("%restore clean").out
    out = notebook.run("!command -v hello || echo gone; dpkg --audit; apt-get check -qq").out
    assert out.split() == ["gone"]
    assert books.read_bytes() == before
