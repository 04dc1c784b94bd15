"""As root: a cell deletes Python, its standard library and the shell of the whole system."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environment_tools import checkpoint

from tests.kernel.durable_world import durable

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

STDLIB = sorted({os.path.realpath(p) for p in glob.glob("/usr/lib/python3*")} | {
    os.path.realpath(sysconfig.get_paths()["stdlib"])
})  # fmt: skip
PROGRAMS = sorted({os.path.realpath(p) for p in (sys.executable, "/bin/sh", "/bin/bash")})
DELETE = f"""
def delete(witness):
    # nobody but this session sees what is written here: the test has made sure
    assert open(witness).read() == 'inside'
    for directory in {STDLIB!r}:
        shutil.rmtree(directory)
    for program in {PROGRAMS!r}:
        os.unlink(program)
def runs(*command):
    try:
        return subprocess.run(command, capture_output=True).returncode
    except OSError as error:
        return error.errno
"""
LOOK = (
    f"print([os.path.exists(p) for p in {[*STDLIB, *PROGRAMS]!r}],"
    f" runs(sys.executable, '-c', 'import colorsys'), runs('/bin/sh', '-c', ':'))"
)
COUNT = len(STDLIB) + len(PROGRAMS)
THERE, GONE = f"{[True] * COUNT} 0 0", f"{[False] * COUNT} 2 2"


def host() -> dict[str, tuple[int, ...]]:
    """What the machine has of what is deleted inside."""
    found = {}
    for top in [*STDLIB, *map(os.path.dirname, PROGRAMS)]:
        for parent, directories, names in os.walk(top):
            for name in [*directories, *names]:
                st = os.lstat(path := os.path.join(parent, name))
                found[path] = (st.st_ino, st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns)
    return found


@pytest.fixture
def notebook(start: Callable[..., Any], work: Path) -> Any:
    """A kernel on the system's own Python, or on a virtual environment over it."""
    return start(
        cwd=work,
        env={
            "JPY_SESSION_NAME": str(work / "n.ipynb"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        },
    )


def delete_all(notebook: Any) -> None:
    """Only where it cannot reach this machine: a file is written to the same places first."""
    covered = notebook.command("status")["environment"]["covered"]
    for path in [*STDLIB, *PROGRAMS]:
        assert any(path.startswith(root.rstrip("/") + "/") for root in covered), path
    here = {f"{Path(path).parent}/tt-witness-{uuid.uuid4().hex}" for path in [*STDLIB, *PROGRAMS]}
    for witness in here:
        notebook.run(f"open({witness!r}, 'w').write('inside')")
        assert not os.path.exists(witness)
    for witness in here:
        notebook.run(f"assert open({witness!r}).read() == 'inside'")
    notebook.run(f"delete({here.pop()!r})")


def test_python_its_library_and_the_shell_come_back(notebook: Any) -> None:
    before = host()
    notebook.run(f"import os, shutil, subprocess, sys\n{DELETE}\nx = [1]; y = x")
    works = checkpoint(notebook, "works")
    notebook.run("x.append(2)")
    delete_all(notebook)
    assert notebook.run(LOOK).out == GONE
    assert notebook.run("print('cells run on')").out == "cells run on"
    assert host() == before
    notebook.run(f"%restore {works}")
    assert notebook.run(LOOK).out == THERE
    assert notebook.run("import colorsys, wave; x, x is y").result == "([1], True)"
    assert notebook.run("!echo $((1 + 1))").out.strip() == "2"
    # there and back again, by --undo
    notebook.run("%restore --undo")
    assert notebook.run(LOOK).out == GONE
    assert notebook.run("x").result == "[1, 2]"
    notebook.run(f"%restore {works}")
    assert notebook.run(LOOK).out == THERE
    assert host() == before


def test_and_after_a_restart_of_the_kernel(notebook: Any) -> None:
    before = host()
    notebook.run(f"import os, shutil, subprocess, sys\n{DELETE}\nx = [1]; y = x")
    works = checkpoint(notebook, "works")
    assert durable(notebook, works)["state"] == "ready"
    delete_all(notebook)
    assert notebook.run(LOOK).out == GONE
    notebook.head()
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(timeout=120)
    cell = notebook.run("print(1)", ok=False)
    assert cell.error.startswith("KernelBroken: "), cell.error
    assert "No such file or directory" in cell.error and "%restore" in cell.error
    told = notebook.run(f"%restore {works}").out
    assert "Python runs again" in told and f"%restore {works} again brings them" in told
    # the files are back; memory is, where it was written: another restore takes it up
    notebook.run(f"%restore {works}")
    assert notebook.run("x, x is y").result == "([1], True)"
    assert notebook.run(LOOK).out == THERE
    assert host() == before
