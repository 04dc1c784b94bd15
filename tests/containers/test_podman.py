"""Podman's service in Docker's place. TT_PODMAN is its address, such as
unix:///run/user/1000/podman/podman.sock; it must have the image that TT_CONTAINER_IMAGE names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.cli import main
from tests.containers.conftest import IMAGE, PACKAGES, START, container, durable, revive
from tests.containers.test_images import printed, seen, session
from tests.waiting import until

__all__ = ["session"]  # a fixture

ADDRESS = os.environ.get("TT_PODMAN", "")


@pytest.fixture(scope="module")
def docker() -> Iterator[Any]:
    """The service, which the fixture `start` uses too."""
    if not ADDRESS:
        pytest.skip("TT_PODMAN names no service of Podman's")
    library = pytest.importorskip("docker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", ADDRESS)
        client = library.from_env(timeout=300)
        yield client
        client.close()


@pytest.fixture(scope="module")
def image(docker: Any) -> str:
    return IMAGE


@pytest.mark.timeout(600)
def test_a_session_goes_back_and_outlives_its_container(
    start: START, place: Path, docker: Any
) -> None:
    document = place / "work" / "a.ipynb"
    document.write_text("{}")
    notebook = start(env={"JPY_SESSION_NAME": str(document)}, network="none", memory="2g")
    assert notebook.command("status")["engines"]["sandbox"] == "namespaces"
    notebook.run(
        f"{PACKAGES}\nx = [1]; it = iter(range(9)); open('f', 'w').write('1')\nprint(os.getuid())"
    )
    notebook.run("%checkpoint --label good")
    notebook.run("x.append(next(it)); open('f', 'w').write('2')\n!rm -rf {here}/dill; touch ~/new")
    assert "restored #" in notebook.run("%restore good").out
    look = (
        "print(x, open('f').read(), os.path.exists(here + '/dill'),\n"
        "      os.path.exists(os.path.expanduser('~/new')), os.getuid())"
    )
    assert notebook.run(look).out == f"[1] 1 True False {os.getuid()}"
    assert (place / "work" / "f").stat().st_uid == os.getuid()
    until(lambda: durable(notebook, "good"), "it is on the disk")
    container(docker, place).remove(force=True)
    revive(notebook)
    notebook.run("%restore good")
    assert notebook.run(look).out == f"[1] 1 True False {os.getuid()}"
    assert notebook.run("print(next(it))").out == "0", "the process, not only variables"


@pytest.mark.timeout(600)
def test_a_checkpoint_becomes_an_image(docker: Any, session: Path) -> None:
    tag = "team/timetravel-test-export:1"
    try:
        assert main(["export", str(session), "2", "--image", tag, "--workspace"]) == 0
        assert seen(docker, tag) == "[False, True] 2 ['only'] 0o750\n"
        where = session.parent / "data"
        assert printed(docker, tag, "cat", f"{where}/deep/f") == "hello"
        assert printed(docker, tag, "readlink", f"{where}/l") == "f\n"
    finally:
        if docker.images.list(tag):
            docker.images.remove(tag, force=True)


@pytest.mark.timeout(600)
def test_the_network_of_podmans_choice(start: START) -> None:
    if os.getuid() and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("rootless networks need /dev/net/tun")
    notebook = start()
    assert "lo" in notebook.run("!ls /sys/class/net").out
    notebook.run("import socket; print(socket.gethostbyname('host.containers.internal'))")


def test_an_image_that_is_not_there(start: START, place: Path) -> None:
    with pytest.raises(Exception, match=r"There is no image .no-such-image:1."):
        start(image="no-such-image:1")
