"""What cannot be started says why and what to do, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.containers.options import parse
from jupyter_timetravel.install import InstallError, run
from tests.containers.conftest import START, built, ours


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"image": "no-such-image:1"}, "There is no image 'no-such-image:1'"),
        ({"image": "Not An Image"}, "does not take 'Not An Image'"),
        ({"python": "no-such-python"}, "no-such-python"),
        ({"python": "/usr/bin/python3"}, "has no jupyter_timetravel under '/usr/bin/python3'"),
        ({"network": "no-such-network"}, "no-such-network"),
        ({"docker_host": "unix:///nonexistent/docker.sock"}, "There is no Docker daemon at unix"),
        ({"colour": "red"}, "colour"),
        ({"memory": "lots"}, "memory is 'lots'"),
    ],
)
def test_nothing_is_started(
    start: START, place: Path, docker: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(Exception, match=said.replace("'", ".")) as error:
        start(**settings)
    assert "." in str(error.value)
    assert ours(docker, place) == []
    assert list((place / "r").glob("timetravel-c-*")) == []


def test_an_image_with_another_version(start: START, place: Path, docker: Any, image: str) -> None:
    mark = "$(echo /opt/timetravel/venv/lib/python3*/site-packages/jupyter_timetravel-*)/METADATA"
    change = f"RUN sed -i 's/^Version: .*/Version: 0.0.1/' {mark}"
    with built(docker, f"FROM {image}", change) as other:
        with pytest.raises(ContainerError, match=r"has jupyter_timetravel 0\.0\.1, the server has"):
            start(image=other)
        assert ours(docker, place) == []
        assert list((place / "r").glob("timetravel-c-*")) == []


def test_a_kernel_that_ends_at_once_tells_the_server_why(
    start: START, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception, match=r"ended|died"):
        start(sandbox="moon")
    assert "There is no 'moon'" in caplog.text


def test_a_socket_that_is_not_ours(start: START, place: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may use any socket")
    path = place / "d.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        path.chmod(0)
        with pytest.raises(ContainerError, match="You may not use Docker's socket"):
            start(docker_host=f"unix://{path}")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "names no image"),
        ({"image": 3}, "names no image"),
        ({"image": "i", "memory": "4 apples"}, "memory"),
        ({"image": "i", "cpus": 0}, "cpus"),
        ({"image": "i", "cpus": True}, "cpus"),
        ({"image": "i", "isolation": "none"}, "isolation"),
        ({"image": "i", "user": "me"}, "user"),
        ({"image": "i", "mounts": ["/a"]}, "mount"),
        ({"image": "i", "capabilities": "SYS_ADMIN"}, "capabilities"),
        ({"image": "i", "seccomp": "off"}, "seccomp"),
        ({"image": "i", "mounts": ["/nonexistent-x:/a"]}, "does not exist"),
        ({"image": "i", "environment": ["A=1"]}, "environment"),
    ],
)
def test_options_that_are_wrong(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ContainerError, match=said):
        parse(config)


def test_options_that_are_right(tmp_path: Path) -> None:
    options, rest = parse(
        {
            "image": "i:1",
            "memory": "1.5g",
            "cpus": "2",
            "mounts": [f"{tmp_path}:/data:ro"],
            "isolation": "plain",
            "auto": "changed",
        }
    )
    assert (options.memory, options.cpus) == (3 << 29, 2.0)
    assert options.user == f"{os.getuid()}:{os.getgid()}"
    assert rest == {"auto": "changed", "sandbox": "none"}


def test_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jupyter_timetravel.cli import build_parser

    line = ["install", "--prefix", str(tmp_path), "--docker", "timetravel:1"]
    assert run(build_parser().parse_args(line)) == 0
    spec = (tmp_path / "share/jupyter/kernels/python3-timetravel-docker/kernel.json").read_text()
    assert '"timetravel-docker-provisioner"' in spec
    assert '"image": "timetravel:1"' in spec
    with pytest.raises(InstallError, match="leave one of them out"):
        run(build_parser().parse_args([*line, "--python", "python3"]))
