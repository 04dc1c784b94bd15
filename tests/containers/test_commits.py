"""Containers that may make no namespaces, whose own layer Docker commits: a restore that needs
another layer goes on in another container, and who is connected stays so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.cli import main
from jupyter_timetravel.containers.daemon import COMMIT
from tests.conftest import UNTIL_GO, Notebook
from tests.containers.conftest import (
    PACKAGES,
    START,
    container,
    durable,
    of_a_notebook,
    ours,
    revive,
)
from tests.containers.test_hard_times import Forwarder, short
from tests.containers.test_story import wheel
from tests.server.server_world import Page, Server
from tests.waiting import PATIENCE, until

__all__ = ["short"]  # a fixture

STATE = (
    "!python -c 'import greeting, numpy; print(greeting.VERSION, int(numpy.ones(2).sum()))'\n"
    "print(*(open(os.path.expanduser(p)).read() for p in ('~/notes', 'f')), x, next(it))"
)


def commits(docker: Any, place: Path) -> list[str]:
    """The ids of the commits of sessions below a directory."""
    found = docker.api.images(all=True, filters={"label": f"{COMMIT}={os.getuid()}"})
    return [i["Id"] for i in found if i["Labels"][f"{COMMIT}.store"].startswith(str(place))]


def layer_of(notebook: Notebook, checkpoint: int | str) -> dict[str, Any]:
    """What a checkpoint says of the container's own layer."""
    record = notebook.command("get", checkpoint=checkpoint)["checkpoint"]
    [found] = [one for one in record["captures"] if one["engine"] == "commit"]
    return dict(found)


def forget(notebook: Notebook, place: Path, docker: Any) -> None:
    """The session is removed, and nothing of it is left."""
    notebook.manager.shutdown_kernel()
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    document = str(place / "work" / "a.ipynb")
    assert main(["prune", document, "--session", "--store", str(store)]) == 0
    assert commits(docker, place) == []
    assert ours(docker, place) == []
    assert not [*(store.parents[1] / "commits").iterdir()]
    assert not [*(place / "r").glob("timetravel-c-*")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_packages_go_back_with_another_container(start: START, place: Path, docker: Any) -> None:
    wheels = place / "wheels"
    wheels.mkdir()
    wheel(wheels, "greeting", "1.0", "VERSION = '1.0'\n")
    mounts = [f"{wheels}:{wheels}:ro"]
    env = of_a_notebook(place)
    notebook = start(isolation="commit", network="none", mounts=mounts, env=env)
    facts = container(docker, place).attrs["HostConfig"]
    assert facts["SecurityOpt"] == ["no-new-privileges"] and facts["MaskedPaths"]
    assert notebook.command("status")["environment"]["covered"] == ["/"]
    notebook.run(f"{PACKAGES}\n!pip install --no-index {wheels}/greeting-1.0-py3-none-any.whl")
    notebook.run(
        "x = 1; it = iter(range(9)); open(os.path.expanduser('~/notes'), 'w').write('mine')\n"
        "open('f', 'w').write('1')\n%checkpoint --label good"
    )
    assert layer_of(notebook, 1)["bytes"] > 0 and layer_of(notebook, "good")["bytes"] == 0
    assert len(commits(docker, place)) == 1, "what nothing has changed is not committed again"

    # in place, where the layer is the same
    box = container(docker, place)
    notebook.run("x = 2; next(it)")
    assert "restored #" in notebook.run("%restore good").out
    assert container(docker, place).id == box.id

    notebook.run("x = 2; next(it)")
    notebook.run("!rm -rf {here}/numpy* {here}/kernel_runtime {here}/zmq {here}/greeting ~/notes f")
    ids = notebook.send_queue(f"{UNTIL_GO}%restore good", STATE)
    cell, state = map(notebook.wait, ids)
    assert cell.status == "ok" and "restored #" in cell.out, (cell.error, cell.out)
    assert "the container was replaced" in cell.out and "stays as it is" not in cell.out
    assert state.out.split() == ["1.0", "2", "mine", "1", "1", "0"], "what waited runs afterwards"
    assert container(docker, place).id != box.id and len(ours(docker, place)) == 1

    # what cannot run is not gone to: the layer without packages has no supervisor
    box = container(docker, place)
    notebook.run("x = 3")
    cell = notebook.run("%restore --undo", ok=False)
    assert cell.error.startswith("RestoreFailed") and "back where you were" in cell.error, cell
    assert notebook.run(STATE).out.split() == ["1.0", "2", "mine", "1", "3", "1"]

    # the container goes away: the next one begins with the layer as it was committed last
    notebook.run("%checkpoint --label later")
    until(lambda: durable(notebook, "later"), "it is on the disk")
    container(docker, place).remove(force=True)
    revive(notebook)
    notebook.run("%timetravel resume")
    assert notebook.run(STATE).out.split() == ["1.0", "2", "mine", "1", "3", "2"]
    forget(notebook, place, docker)


@pytest.mark.root
def test_what_root_changes_goes_back(start: START, place: Path, docker: Any) -> None:
    """As apt-get does: programs, settings, system files; asked for by a client on control."""
    notebook = start(isolation="commit", network="none", env=of_a_notebook(place))
    notebook.run("import os; x = 1")
    notebook.run(
        "!printf '#!/bin/sh\\necho new' > /usr/bin/newtool; chmod 755 /usr/bin/newtool\n"
        "!echo setting > /etc/newtool.conf; rm -r /etc/issue /usr/share/doc; chmod 700 /usr/games\n"
        "x = 2"
    )
    look = (
        "!newtool 2>&1 | tail -1\n"
        "print(x, os.path.exists('/etc/newtool.conf'), os.path.exists('/etc/issue'),\n"
        "      os.path.isdir('/usr/share/doc'), oct(os.stat('/usr/games').st_mode & 0o777))"
    )
    changed = notebook.run(look).out
    assert changed.split() == ["new", "2", "True", "False", "False", "0o700"]
    record = notebook.command("get", checkpoint=2)["checkpoint"]
    assert not [
        n for c in record["captures"] for n in c["not_captured"] if "container" in n["kind"]
    ]
    plan = notebook.command("restore", checkpoint=1, dry_run=True)
    assert any("another container takes" in text for text in plan["warnings"])
    result = notebook.command("restore", checkpoint=1)
    assert result["process"] == "image", result["text"]
    before = notebook.run(look).out
    assert "not found" in before and before.endswith("1 False True True 0o755"), before
    assert "restored #" in notebook.run("%restore --undo").out
    assert notebook.run(look).out == changed
    # files alone: the process lives on in the other container
    assert "restored" in notebook.run("x = 3\n%restore 1 --only files").out
    assert notebook.run(look).out.endswith("3 False True True 0o755")
    forget(notebook, place, docker)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_fails_leaves_all_as_it_was(
    start: START, place: Path, docker: Any, short: Path
) -> None:
    real = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    forwarder = Forwarder(short / "d.sock", real)
    notebook = start(
        isolation="commit",
        network="none",
        docker_host=forwarder.address,
        environment={"TIMETRAVEL_FAULT": "files in the next container"},
        env=of_a_notebook(place),
    )
    notebook.run("import os, sys; x = 1; mine = sys.prefix + '/mine'; open('f', 'w').write('1')")
    notebook.run("open(mine, 'w').write('2'); x = 2; open('f', 'w').write('2')")
    notebook.head()
    [second] = commits(docker, place)
    notebook.run("open(mine, 'w').write('3'); x = 3; open('f', 'w').write('3')")
    look = "print(x, open('f').read(), open(mine).read())"
    box = container(docker, place)

    # in the next container: back to the one before, with its process
    cell = notebook.run("%restore 2", ok=False)
    assert "injected" in cell.error and "back where you were" in cell.error, cell.error
    assert notebook.run(look).out == "3 3 3"
    assert container(docker, place).id != box.id

    # the image is gone: refused, in the same container
    box = container(docker, place)
    docker.images.remove(second, force=True)
    cell = notebook.run("%restore 2", ok=False)
    assert cell.error.startswith("RestoreRefused") and "Nothing was changed" in cell.error
    assert notebook.run(look).out == "3 3 3" and container(docker, place).id == box.id

    # the daemon is away: checkpoints say so, nothing is restored
    forwarder.stop()
    notebook.run("open(mine, 'w').write('4'); x = 4")
    failed = layer_of(notebook, -1)
    assert failed["state"] == "failed" and "no Docker daemon" in failed["error"]
    cell = notebook.run("%restore 1", ok=False)
    assert cell.error.startswith("RestoreRefused") and "could not be held" in cell.error
    assert notebook.run(look).out == "4 3 4" and container(docker, place).id == box.id
    assert "restored" in notebook.run("%restore 2 --only process").out, "memory goes back without"
    forwarder.start()
    notebook.run("x = 5")
    assert layer_of(notebook, -1)["state"] == "ready", "it is tried again"
    forget(notebook, place, docker)


SERVER = """
import os, signal, sys, time
from pathlib import Path
from tests.containers.conftest import Manager, declare
declare()
place = Path(sys.argv[2])
manager = Manager()
manager.settings = {"image": sys.argv[1], "isolation": "commit", "network": "none"}
document = str(place / "work" / "a.ipynb")
manager.start_kernel(cwd=str(place / "work"), env={**os.environ, "JPY_SESSION_NAME": document})
client = manager.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive("import sys; x = 1; open('f', 'w').write('1')")
client.execute_interactive("x = 2; open('f', 'w').write('2'); open(sys.prefix + '/m', 'w').close()")
client.execute("%restore 1")
notes = "data/timetravel-containers/*/kept/store/containers/*"
while not [*place.glob(notes)] and not client.shell_channel.msg_ready():  # or it is done already
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_is_killed_in_a_restore(
    start: START, place: Path, docker: Any, image: str
) -> None:
    """Whatever it had come to, the next start has all as it was or as it was to be."""
    env = of_a_notebook(place)
    command = [sys.executable, "-c", SERVER, image, str(place)]
    assert subprocess.run(command, timeout=2 * PATIENCE).returncode == -signal.SIGKILL
    notebook = start(isolation="commit", network="none", env=env)
    notebook.run("import os")
    look = "print(x, open('f').read(), os.path.exists(sys.prefix + '/m'))"
    assert notebook.run(look).out in ("1 1 False", "2 2 True")
    forget(notebook, place, docker)


def test_a_page_stays_connected(
    server: Server, install: Callable[..., str], place: Path, docker: Any
) -> None:
    """As in JupyterLab: the server's own sockets find the kernel in its next container."""
    kernel = server.start("a.ipynb", install(isolation="commit", network="none"))
    page = Page(server, kernel.id)
    page.run("import os, sys; x = 1; mine = sys.prefix + '/mine'")
    page.run("x = 2; open(mine, 'w').close()")
    look = "print(x, os.path.exists(mine))"
    boxes = [container(docker, place).id]
    told = page.run("%restore 1")
    assert "the container was replaced" in told, told
    assert page.run(look) == "1 False\n"
    boxes.append(container(docker, place).id)
    asked = {"version": 1, "command": "restore", "args": {"undo": True}}
    assert "restored #" in page.ask(asked)["text"]
    assert page.run(look) == "2 True\n"
    boxes.append(container(docker, place).id)
    assert len(set(boxes)) == 3
    page.close()
    server.end(kernel)
    [store] = (place / "data" / "timetravel-containers").glob("*/kept/store")
    document = str(server.notebooks / "a.ipynb")
    assert main(["prune", document, "--session", "--store", str(store)]) == 0
    assert commits(docker, place) == []
