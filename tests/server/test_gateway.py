"""A server whose kernels run on another one, behind it as a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_timetravel import Client
from jupyter_timetravel.wire import KernelGone
from tests.server.server_world import Page, Server, running
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def front(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that people speak to; its kernels run on ``server``."""
    gateway = (
        f"--GatewayClient.url={server.url}",
        "--GatewayClient.auth_token=owner",
        "--GatewayClient.request_timeout=60",
    )
    with running(tmp_path_factory.mktemp("front"), *gateway) as front:
        yield front


@pytest.fixture
def kernel(front: Server) -> Iterator[str]:
    """The id of a kernel behind the gateway."""
    with front.as_user() as http:
        model = {"path": "g.ipynb", "type": "notebook", "name": "g.ipynb"}
        made = http.post(
            f"{front.url}api/sessions", json={**model, "kernel": {"name": "python3-timetravel"}}
        )
        assert made.status_code == 201, made.text
        id = made.json()["kernel"]["id"]
        yield id
        assert http.delete(f"{front.url}api/kernels/{id}").status_code == 204


def test_rest_through_a_gateway(front: Server, kernel: str) -> None:
    page = Page(front, kernel)
    page.run("x = 1")
    with front.as_user() as http, Client.at(front.url, token="owner", kernel=kernel) as client:
        with client.events(timeout=PATIENCE) as events:
            made = client.checkpoint("behind the gateway", label="here")
            # between others: captures of checkpoints before it become ready
            assert any(event.name == "checkpoint_created" for event in events)
        about = http.get(f"/sessions/{kernel}").json()
        assert (about["time_travel"], about["head"]) == (True, made.number), about
        assert about["id"] in [one["id"] for one in http.get("/sessions").json()["sessions"]]
        page.run("x = 2")
        assert client.get(made.number).variables["x"]["value"] == "1"
        done = client.restore("here")
        assert done.safety is not None and page.run("print(x)") == "1\n"
        # progress, while another cell's output goes by
        stream = {"Accept": "text/event-stream"}
        url = f"/sessions/{kernel}/restore"
        told = http.post(url, json={"undo": True}, headers=stream, timeout=PATIENCE)
        messages = [json.loads(line[5:]) for line in told.text.splitlines() if line[:5] == "data:"]
        assert messages[-1]["type"] == "result"
        assert "bringing memory back" in [one.get("text") for one in messages]
        assert page.run("print(x)") == "2\n"
        # what is stored is the gateway's own
        refused = http.get("/sessions/0123456789abcdef/checkpoints")
        assert (refused.status_code, refused.json()["error"]) == (404, "NoSuchSession")
    page.close()


def test_a_restart_behind_a_gateway(server: Server, front: Server, kernel: str) -> None:
    """Also one that the server in front does not hear of."""
    with Client.at(front.url, token="owner", kernel=kernel) as client:
        client.checkpoint("before the restart")
        for url in (front.url, server.url):
            with front.as_user() as http:
                answer = http.post(f"{url}api/kernels/{kernel}/restart", timeout=PATIENCE)
                assert answer.status_code == 200, answer.text
            try:
                made = client.checkpoint("after")
            except KernelGone:  # the first that is asked may find out
                made = client.checkpoint("after")
            assert made.id == client.list()[-1].id
        with client.events(timeout=PATIENCE) as events, front.as_user() as http:
            http.post(f"{server.url}api/kernels/{kernel}/restart", timeout=PATIENCE)
            with pytest.raises(KernelGone):
                for _ in events:
                    pass


def test_a_gateway_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "front").mkdir()
    with running(tmp_path / "behind") as behind:
        options = (f"--GatewayClient.url={behind.url}", "--GatewayClient.auth_token=owner")
        with running(tmp_path / "front", *options) as front, front.as_user() as http:
            model = {"path": "g.ipynb", "type": "notebook", "name": "g.ipynb"}
            made = http.post(
                f"{front.url}api/sessions", json={**model, "kernel": {"name": "python3-timetravel"}}
            )
            assert made.status_code == 201, made.text
            id = made.json()["kernel"]["id"]
            status = f"/sessions/{id}/status"
            assert http.get(status).status_code == 200
            family = psutil.Process(behind.process.pid).children(recursive=True)
            behind.process.kill()
            behind.process.wait()
            told = [http.get(status) for _ in range(2)][-1]
            assert told.status_code == 502, told.text
            assert told.json()["error"] == "BehindGateway" and "Nothing was done" in told.text
            front.process.kill()  # for its end it would ask the gateway again and again
        assert not psutil.wait_procs(family, timeout=110)[1], "the kernel is in the directory still"


def test_the_protocol_through_a_gateway(front: Server, kernel: str) -> None:
    """What the sidebar does."""
    page = Page(front, kernel)
    result = page.ask({"version": 1, "command": "checkpoint", "args": {"comment": "a page's"}})
    assert result["checkpoint"]["comment"] == "a page's"
    page.close()
