"""Without a sandbox: the Python environment's own prefix is captured like a workspace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environment_tools import checkpoint, make_venv, make_wheel, site_packages, tree

FILTERED = (sys.executable, str(Path(__file__).with_name("deny.py")), "unshare", "--")
"""Starts a program that may not make namespaces."""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """tinynum 1.0."""
    files = {"tinynum/__init__.py": "__version__ = '1.0'\n"}
    make_wheel(tmp_path / "wheels", "tinynum", "1.0", files)
    return tmp_path / "wheels"


def test_an_install_without_a_sandbox_is_taken_back(
    start_notebook: Callable[..., Any], home: Path, work: Path, wheels: Path
) -> None:
    venv = home / "venv"
    python = make_venv(venv)
    before = tree(venv)
    notebook = start_notebook(
        "--Supervisor.sandbox=none",
        f"--python={python}",
        f"--Supervisor.workspace={json.dumps([str(venv)])}",
        cwd=work,
        env={"HOME": str(home), "JPY_SESSION_NAME": str(work / "n.ipynb")},
    )
    assert not notebook.command("status")["environment"]["covered"]
    notebook.run("import subprocess, sys, importlib.metadata as md; x = 1")
    clean = checkpoint(notebook, "clean")
    notebook.run(
        "x = 2\n"
        "subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-index',"
        f" '--find-links', {str(wheels)!r}, 'tinynum'], check=True)"
    )
    seen = (
        "print(x, subprocess.run([sys.executable, '-c', 'import tinynum'],"
        " capture_output=True).returncode)"
    )
    assert notebook.run(seen).out == "2 0"
    installed = checkpoint(notebook, "installed")
    there = tree(venv)
    assert any(path.endswith(b"tinynum/__init__.py") for path in there)
    told = notebook.run(f"%restore {clean}")
    assert "tinynum" in told.out
    assert notebook.run(seen).out == "1 1"
    assert tree(venv) == before
    notebook.run(f"%restore {installed}")
    assert notebook.run(seen).out == "2 0"
    assert notebook.run("md.version('tinynum')").result == "'1.0'"
    assert tree(venv) == there
    assert (site_packages(venv) / "tinynum").is_dir()


def test_it_is_offered_where_namespaces_are_refused(
    start_notebook: Callable[..., Any],
    home: Path,
    work: Path,
    ability: Callable[[str, bool], None],
) -> None:
    ability("an ordinary user", os.geteuid() != 0)  # root is not stopped
    ability("seccomp filters", subprocess.run([*FILTERED, "true"], check=False).returncode == 0)
    venv = home / "venv"
    python = make_venv(venv)
    setting = f"Supervisor.workspace={json.dumps([str(venv)])}"
    options: dict[str, Any] = {"cwd": work, "env": {"HOME": str(home)}, "prefix": FILTERED}
    notebook = start_notebook(f"--python={python}", **options)
    assert setting in notebook.run("1").text("stderr")
    assert setting in notebook.run("%timetravel status").out
    # not where it is so already
    notebook = start_notebook(f"--python={python}", f"--{setting}", **options)
    told = notebook.run("1").text("stderr")
    assert "are not rolled back" in told and "Supervisor.workspace" not in told
    # the doctor looks at the environment that it runs in
    code = "from jupyter_timetravel.cli import main; raise SystemExit(main(['doctor', '--json']))"
    done = subprocess.run(
        [*FILTERED, python, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert rows["overlays"]["state"] == "limited", done.stderr
    assert setting in rows["overlays"]["text"]
