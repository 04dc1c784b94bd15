"""The option ``network``: what a kernel reaches with each choice, before and after a restore."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook
from tests.containers.conftest import START, container
from tests.containers.test_cases import Echo

ASK = """
import socket
def ask(host, port):
    try:
        with socket.create_connection((host, port), 20) as peer:
            peer.sendall(b"there?")
            return peer.recv(10)
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture
def echo() -> Iterator[Echo]:
    """On the host."""
    one = Echo()
    yield one
    one.stop()


@pytest.fixture
def network(docker: Any) -> Iterator[str]:
    """One of Docker's with a name of its own."""
    made = docker.networks.create(f"timetravel-test-{uuid.uuid4().hex[:8]}")
    yield made.name
    made.remove()


def reached(notebook: Notebook, host: str, port: int) -> str:
    """What comes back, before and after a restore; it must be the same."""
    notebook.run(f"{ASK}\nx = 1")
    first = notebook.run(f"print(ask({host!r}, {port}))").out
    assert "restored #1" in notebook.run("%restore 1").out
    assert notebook.run(f"print(ask({host!r}, {port}), x)").out == f"{first} 1"
    return first


def test_none(start: START, echo: Echo, docker: Any, place: Path) -> None:
    notebook = start(network="none")
    assert reached(notebook, "host.docker.internal", echo.port) == "gaierror"
    assert container(docker, place).attrs["HostConfig"]["NetworkMode"] == "none"


def test_bridge(start: START, echo: Echo) -> None:
    notebook = start()
    assert reached(notebook, "host.docker.internal", echo.port) == "b'there?'"
    assert reached(notebook, "127.0.0.1", echo.port) == "ConnectionRefusedError"


def test_host(start: START, echo: Echo) -> None:
    assert reached(start(network="host"), "127.0.0.1", echo.port) == "b'there?'"


def test_one_of_its_own(
    start: START, echo: Echo, network: str, docker: Any, image: str, place: Path
) -> None:
    """The kernel reaches its neighbours there by name, and the host."""
    serve = (
        "import socket; one = socket.create_server(('', 9000)); print('up', flush=True)\n"
        "while True:\n    peer, _ = one.accept(); peer.sendall(peer.recv(10).upper())"
    )
    neighbour = docker.containers.run(
        image, ["python", "-c", serve], entrypoint="", network=network, name=network, detach=True
    )
    try:
        next(iter(neighbour.logs(stream=True)))
        notebook = start(network=network)
        assert list(container(docker, place).attrs["NetworkSettings"]["Networks"]) == [network]
        assert reached(notebook, network, 9000) == "b'THERE?'"
        assert reached(notebook, "host.docker.internal", echo.port) == "b'there?'"
        notebook.manager.shutdown_kernel()
    finally:
        neighbour.remove(force=True)
