"""The addresses of the sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from kernel_runtime.supervisor import sockets
from tests.conftest import PORTS


@pytest.fixture
def router() -> Iterator[Any]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.linger = 0
        yield made


def test_a_port_that_becomes_free_is_waited_for(
    router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_BIND_S", 60.0)
    port = next(PORTS)  # nobody else takes it meanwhile
    other = socket.create_server(("127.0.0.1", port))
    threading.Timer(0.3, other.close).start()
    assert sockets.bind(router, f"tcp://127.0.0.1:{port}") == port


def test_a_port_that_stays_taken_is_named(router: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_BIND_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(sockets.AddressTaken, match=address):
            sockets.bind(router, address)
