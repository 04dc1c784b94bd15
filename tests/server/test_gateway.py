"""A server whose kernels run on another one, behind it as a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jupyter_client.session import Session
from websocket import WebSocket, create_connection

from jupyter_timetravel import Client
from tests.conftest import PATIENCE
from tests.server.server_world import Server, running


def test_through_a_gateway(server: Server, tmp_path: Path) -> None:
    """The kernel's server answers for it; the one in front says so; the protocol passes."""
    gateway = (
        f"--GatewayClient.url={server.url}",
        "--GatewayClient.auth_token=owner",
        "--GatewayClient.request_timeout=60",
    )
    with running(tmp_path, *gateway) as front, front.as_user() as http:
        model = {"path": "g.ipynb", "type": "notebook", "name": "g.ipynb"}
        made = http.post(
            f"{front.url}api/sessions", json={**model, "kernel": {"name": "python3-timetravel"}}
        )
        assert made.status_code == 201, made.text
        id = made.json()["kernel"]["id"]

        about = http.get(f"/sessions/{id}").json()
        assert about["live"] and about["time_travel"] is None and "gateway" in about["problem"]
        told = http.get(f"/sessions/{id}/checkpoints")
        assert (told.status_code, told.json()["error"]) == (501, "BehindGateway")

        with Client.at(server.url, token="owner", kernel=id) as client:
            assert client.checkpoint("behind the gateway").comment == "behind the gateway"

        # what the sidebar does, through the server in front
        url = front.url.replace("http", "ws", 1) + f"api/kernels/{id}/channels"
        socket = create_connection(url, header=["Authorization: token owner"], timeout=PATIENCE)
        result = _ask(socket, {"version": 1, "command": "list", "args": {}})
        assert [one["comment"] for one in result["checkpoints"]][-1] == "behind the gateway"
        socket.close()
        assert http.delete(f"{front.url}api/kernels/{id}").status_code == 204


def _ask(socket: WebSocket, content: dict[str, Any]) -> Any:
    message = Session().msg("timetravel_request", content)
    message["channel"] = "control"
    socket.send(json.dumps(message, default=str))
    while True:
        reply = json.loads(socket.recv())
        if reply["msg_type"] == "timetravel_reply":
            assert reply["content"]["status"] == "ok", reply["content"]
            return reply["content"]["result"]
