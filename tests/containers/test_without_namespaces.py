"""Containers that may make no namespaces: what goes back, and what a user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import PACKAGES, START, container, durable, revive, until

STATE = (
    "!python -c 'import mine, numpy; print(mine.X, int(numpy.ones(2).sum()))'\n"
    "print(*(open(os.path.expanduser(p)).read() for p in ('~/notes', 'f')), x, next(it))"
)


def test_a_plain_container(start: START) -> None:
    notebook = start(isolation="plain", network="none")
    notebook.run(f"{PACKAGES}\nx = 1; open('f', 'w').write('1')")
    notebook.run("x = 2; open('f', 'w').write('2'); open(here + '/mine.py', 'w').write('X = 1')")
    told = notebook.run("%restore 1").out
    assert "restored #1" in told
    look = "print(x, open('f').read(), os.path.exists(here + '/mine.py'))"
    assert notebook.run(look).out == "1 1 True", "the environment is not taken back"
    status = notebook.command("status")
    assert status["engines"]["sandbox"] == "none"
    assert "The environment is not covered" in notebook.run("%timetravel status").out
    # without packages it goes back all the same: the supervisor has what it needs in memory
    notebook.run("!rm -rf {here}")
    assert "restored #1" in notebook.run("%restore 1").out
    assert notebook.run("print(x, os.path.exists(here))").out == "1 False"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_snapshots_of_packages_and_home(start: START, place: Path, docker: Any) -> None:
    document = place / "work" / "a.ipynb"
    document.write_text("{}")
    notebook = start(isolation="snapshots", network="none", env={"JPY_SESSION_NAME": str(document)})
    facts = container(docker, place).attrs["HostConfig"]
    assert facts["SecurityOpt"] == ["no-new-privileges"] and facts["MaskedPaths"]
    notebook.run(
        f"{PACKAGES}\nx = 1; it = iter(range(9)); open(here + '/mine.py', 'w').write('X = 7')\n"
        "open(os.path.expanduser('~/notes'), 'w').write('mine'); open('f', 'w').write('1')"
    )
    notebook.run("%checkpoint --label good")
    until(lambda: durable(notebook, "good"), "it is on the disk")
    notebook.run("x = 2; next(it)")
    notebook.run("!rm -rf {here}/numpy* {here}/kernel_runtime {here}/zmq {here}/mine.py ~/notes f")
    assert "No module named" in notebook.run("!python -c 'import numpy'").out
    assert "restored #" in notebook.run("%restore good").out
    assert notebook.run(STATE).out.split() == ["7", "2", "mine", "1", "1", "0"]

    # the next container has the image's packages until a checkpoint's are put back
    container(docker, place).remove(force=True)
    revive(notebook)
    assert "No module named" in notebook.run("!python -c 'import mine'").out
    report = notebook.run("%restore good").out
    assert notebook.run(STATE).out.split() == ["7", "2", "mine", "1", "1", "0"], report

    # a home of its own: this notebook takes back nothing that another has written
    [home] = (place / "data" / "timetravel-containers").glob("*/homes/*")
    assert (home / "notes").read_text() == "mine"
