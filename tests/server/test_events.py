"""The server's event bus, and what listening costs a kernel."""

from __future__ import annotations

import contextlib
import json
import queue
from pathlib import Path
from typing import Any

import pytest
from jupyter_events.schema import EventSchema
from websocket import WebSocketTimeoutException, create_connection

from jupyter_timetravel.server import publishing
from tests.server.server_world import Kernel, Server, running
from tests.waiting import PATIENCE


class Bus:
    """A subscription to the bus, as a front end has it."""

    def __init__(self, server: Server) -> None:
        url = server.url.replace("http", "ws", 1) + "api/events/subscribe"
        headers = ["Authorization: token owner"]
        self._socket = create_connection(url, header=headers, timeout=PATIENCE)

    def next(self, action: str) -> dict[str, Any]:
        """The next event of time travel with that action."""
        while True:
            told: dict[str, Any] = json.loads(self._socket.recv())
            if told["schema_id"] == publishing.SCHEMA and told["action"] == action:
                return told

    def wait_for_cell(self, kernel: Kernel) -> None:
        """Make checkpoints until the server listens to a kernel that has just started.

        Those before the last one are not heard of any more, however late they are told.
        """
        self._socket.settimeout(1)
        for number in range(int(PATIENCE)):
            kernel.run(f"%checkpoint heard {number}")
            with contextlib.suppress(WebSocketTimeoutException):
                while self.next("checkpoint_created").get("comment") != f"heard {number}":
                    pass
                self._socket.settimeout(PATIENCE)
                return
        pytest.fail("no event came")

    def close(self) -> None:
        self._socket.close()


def test_what_happens_is_emitted_where_that_is_on(tmp_path: Path) -> None:
    with running(tmp_path, "--TimeTravelServer.events=True") as server, server.as_user() as http:
        assert http.get("").json()["events"] is True
        bus = Bus(server)
        kernel = server.start("a.ipynb")
        bus.wait_for_cell(kernel)
        kernel.run("%checkpoint said --label L")
        made = bus.next("checkpoint_created")
        assert (made["label"], made["comment"], made["reason"]) == ("L", "said", "manual")
        assert made["kernel_id"] == kernel.id and "code" not in made
        number = made["checkpoint_number"]
        http.post(f"/sessions/{kernel.id}/restore", json={"checkpoint": 1})
        assert bus.next("restore_started")["checkpoint_number"] == 1
        done = bus.next("restore_finished")
        assert done["checkpoint_number"] == 1 and done["safety_number"] > number
        http.delete(f"/sessions/{kernel.id}/checkpoints/L")
        assert bus.next("checkpoint_deleted")["checkpoint_number"] == number
        server.restart(kernel)  # the new process is followed, too
        bus.wait_for_cell(kernel)
        ordinary = server.start("b.ipynb", "python3")
        ordinary.run("x = 1")
        for one in (kernel, ordinary):
            server.end(one)
        bus.close()
        text = server.log.read_text()
        assert "Traceback" not in text, text


def test_off_nothing_listens_to_a_kernel(server: Server, http: Any, start: Any) -> None:
    kernel = start()
    kernel.run("x = 1")
    # the kernel publishes events once somebody asks; nobody has
    with pytest.raises(queue.Empty):
        while True:
            message = kernel.client.get_iopub_msg(timeout=1)
            assert message["msg_type"] != "timetravel_event"
    assert http.get("").json()["events"] is False


def test_the_schema_is_one_and_says_what_is_personal() -> None:
    text = (Path(publishing.__file__).parent / "timeline_v1.yaml").read_text()
    schema = EventSchema(text)
    assert schema.id == publishing.SCHEMA
    actions = schema._schema["properties"]["action"]["enum"]
    assert set(actions) == set(publishing._ACTIONS)
    assert "personal-data: true" in text
