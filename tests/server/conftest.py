"""Fixtures: one server for all of these tests, and kernels on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest

from tests.server.server_world import Kernel, Server, running


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Jupyter server with three users, at a base URL as a hub gives it."""
    with running(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """The owner's requests."""
    with server.as_user() as client:
        yield client


_numbers = count(1)


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., Kernel]]:
    """Open notebooks of their own; their kernels end with the test."""
    started: list[Kernel] = []

    def begin(path: str | None = None, **options: str) -> Kernel:
        kernel = server.start(path or f"nb{next(_numbers)}/a.ipynb", **options)
        started.append(kernel)
        return kernel

    yield begin
    for kernel in started:
        if kernel in server.kernels:
            server.end(kernel)
