"""Containers that may make no namespaces: what goes back, and what a user is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook
from tests.containers.conftest import (
    PACKAGES,
    START,
    built,
    container,
    durable,
    of_a_notebook,
    revive,
)
from tests.waiting import until

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


def named(notebook: Notebook, checkpoint: int | str) -> dict[str, str]:
    """What a checkpoint says that it does not hold of the container."""
    record = notebook.command("get", checkpoint=checkpoint)["checkpoint"]
    [files] = [one for one in record["captures"] if one["engine"] == "workspace"]
    assert files["state"] == "ready"
    return {
        note["subject"]: note["detail"].split(",")[0]
        for note in files["not_captured"]
        if note["kind"] == "file of the container"
    }


def test_what_is_not_captured_is_named(start: START, place: Path, docker: Any, image: str) -> None:
    """Each checkpoint says what has changed in the container outside of it, and a restore what
    stays; so does one in the next container, where none of it is."""
    me = f"{os.getuid()}:{os.getgid()}"
    lines = (
        f"FROM {image}",
        "WORKDIR /srv/own/old",
        "RUN touch ../a ../b c /srv/one",
        f"RUN chown -R {me} /srv",
        "WORKDIR /srv/others",
        "RUN touch file open && chmod 666 open",
    )
    with built(docker, *lines) as other:
        notebook = start(image=other, isolation="plain", network="none", env=of_a_notebook(place))
        notebook.run("x = 1; open('f', 'w').write('1')")
        assert named(notebook, 1) == {}
        notebook.run("open('/srv/own/a', 'w').write('2')\n%checkpoint --label kept")
        assert named(notebook, "kept") == {"/srv/own/a": "changed"}
        notebook.run("x = 2")
        notebook.run(
            "!rm -r /srv/own/b /srv/own/old; mkdir -p /srv/own/new/deep\n"
            "!echo 2 > /srv/others/open; touch /srv/own/new/c /srv/own/new/deep/d /tmp/any\n"
            "!mv /srv/one /srv/other; touch /srv/others/not; chmod 700 /srv/own"
        )
        changed = {
            "/srv/one": "deleted",
            "/srv/other": "made",
            "/srv/others/open": "changed",
            "/srv/own": "changed",
            "/srv/own/a": "changed",
            "/srv/own/b": "deleted",
            "/srv/own/new": "made with 2 files",
            "/srv/own/old": "deleted",
        }
        assert named(notebook, notebook.head()["number"]) == changed
        told = notebook.command("restore", checkpoint="kept")
        stays = [text for text in told["warnings"] if text.startswith("stays as it is: ")]
        assert {text.split(": ")[2] for text in stays} == changed.keys() - {"/srv/own/a"}
        assert notebook.run("print(x, open('f').read())").out == "1 1"
        until(lambda: durable(notebook, "kept"), "it is on the disk")

        # in a new container nothing of it is there, which is another difference
        container(docker, place).remove(force=True)
        revive(notebook)
        told = notebook.command("restore", checkpoint="kept")
        stays = [text for text in told["warnings"] if text.startswith("stays as it is: ")]
        assert len(stays) == 1 and "/srv/own/a: as it was when this kernel started" in stays[0], (
            stays
        )
        assert notebook.run("print(x, repr(open('/srv/own/a').read()))").out == "1 ''"


@pytest.mark.root
def test_what_root_changes_is_named(start: START) -> None:
    notebook = start(isolation="plain", network="none")
    notebook.run("x = 1")
    notebook.run("!rm /etc/issue; mkdir /usr/local/lib/mine; touch /usr/local/lib/mine/file")
    changed = {"/etc/issue": "deleted", "/usr/local/lib/mine": "made with 1 files"}
    assert named(notebook, 2) == changed
    report = notebook.run("%restore 1").out
    assert all(f"file of the container: {path}: " in report for path in changed), report


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
    notebook.run("x = 2; next(it); open('/var/tmp/mine', 'w').close()")
    notebook.run("!rm -rf {here}/numpy* {here}/kernel_runtime {here}/zmq {here}/mine.py ~/notes f")
    assert "No module named" in notebook.run("!python -c 'import numpy'").out
    report = notebook.run("%restore good").out
    assert "restored #" in report and report.count("stays as it is") == 1, report
    assert "file of the container: /var/tmp/mine: made" in report, "what is not captured is named"
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
