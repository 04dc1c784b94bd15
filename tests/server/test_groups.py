"""Groups of sessions over HTTP: made, captured, taken back; with progress, and by the clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest

from jupyter_timetravel import AsyncClient, Client
from jupyter_timetravel.groups import GroupFailed
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.groups import GroupRefused, UnknownGroup
from tests.server.server_world import Kernel, Server, messages
from tests.waiting import PATIENCE

STREAM = {"Accept": "text/event-stream"}
Pair = tuple[Kernel, Kernel]


@pytest.fixture
def pair(start: Callable[..., Kernel], request: pytest.FixtureRequest) -> Pair:
    """Two kernels in one folder; one is named by its path, one by its id."""
    folder = f"groups-{request.node.name}"
    made = start(f"{folder}/a.ipynb"), start(f"{folder}/b.ipynb")
    for kernel in made:
        kernel.run("x = 1")
    return made


def create(http: httpx.Client, group: str, pair: Pair) -> dict[str, Any]:
    members = [pair[0].path, f"second={pair[1].id}"]
    answer = http.post("/groups", json={"group": group, "members": members})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def values(pair: Pair) -> list[str]:
    """Of x; what the cell says of the group before it is left out."""
    return [kernel.run("print(x)").splitlines()[-1] for kernel in pair]


def test_a_group_is_made_captured_and_taken_back(http: httpx.Client, pair: Pair) -> None:
    made = create(http, "story", pair)
    assert [one["name"] for one in made["members"]] == ["a", "second"] and not made["records"]
    said = {"comment": "before", "timeout": 60}
    captured = http.post("/groups/story/checkpoints", json=said)
    assert captured.status_code == 201 and captured.json()["record"]["title"] == "G1"
    shown = http.get("/groups/story").json()
    assert [(one["state"], one["at"]) for one in shown["members"]] == [("running", "G1")] * 2
    for kernel in pair:
        kernel.run("x = 2")

    plan = http.post("/groups/story/restore", json={"record": "before", "dry_run": True}).json()
    assert plan["dry_run"] and set(plan["members"]) == {"a", "second"}
    for one in plan["members"].values():
        assert [change["name"] for change in one["variables"]["changed"]] == ["x"]
    assert values(pair) == ["2", "2"]

    with http.stream(
        "POST", "/groups/story/restore", json={"record": "G1"}, headers=STREAM
    ) as answer:
        told = list(messages(answer))
    assert told[-1]["type"] == "result" and told[-1]["result"]["safety"]["title"] == "G2"
    lines = [one["text"] for one in told[:-1]]
    assert "a goes back (1 of 2)" in lines and "second goes back (2 of 2)" in lines
    assert any(line.startswith("second is captured as #") for line in lines)
    assert values(pair) == ["1", "1"]

    done = http.post("/groups/story/restore", json={"undo": True, "member": None})
    assert done.status_code == 200 and values(pair) == ["2", "2"]
    alone = http.post("/groups/story/restore", json={"record": "1", "member": "second"}).json()
    assert alone["member"] == "second" and values(pair) == ["2", "1"]
    assert http.get("/groups/story").json()["mixed"]


def test_a_checkpoint_of_a_group_tells_whom_it_waits_for(http: httpx.Client, pair: Pair) -> None:
    create(http, "waits", pair)
    pair[1].run("import pathlib, time")
    pair[1].begin("while not pathlib.Path('go').exists(): time.sleep(0.01)")
    with http.stream("POST", "/groups/waits/checkpoints", json={}, headers=STREAM) as answer:
        told = []
        for one in messages(answer):
            told.append(one)
            if one.get("text") == "waiting for second (busy)":
                pair[0].run("pathlib = __import__('pathlib'); pathlib.Path('go').touch()")
    assert "waiting for second (busy)" in [one.get("text") for one in told]
    assert told[-1]["result"]["record"]["complete"]


def test_the_groups_of_a_session(http: httpx.Client, pair: Pair, start: Any) -> None:
    create(http, "of-a", pair)
    other = start()
    other.run("x = 1")
    stock = start(kernel="python3")
    for kernel, names in ((pair[0], ["of-a"]), (pair[1], ["of-a"]), (other, []), (stock, [])):
        found = http.get("/groups", params={"session": kernel.id}).json()["groups"]
        assert [one["group"] for one in found] == names
    assert "of-a" in [one["group"] for one in http.get("/groups").json()["groups"]]


def test_what_does_not_work_is_told(
    server: Server, http: httpx.Client, pair: Pair, start: Any
) -> None:
    create(http, "refused", pair)
    ended = start()
    ended.run("x = 1")
    server.end(ended)
    file = str(server.root / "runtime" / f"kernel-{pair[0].id}.json")
    for asked, status, name in (
        ({"group": "refused", "members": [pair[0].id]}, 409, "GroupRefused"),
        ({"group": "-", "members": [pair[0].id]}, 400, "BadRequest"),
        ({"group": "new", "members": []}, 400, "BadRequest"),
        ({"group": "new", "members": [pair[0].id, pair[0].path]}, 409, "GroupRefused"),
        ({"group": "new", "members": ["nobody.ipynb"]}, 404, "NoSuchSession"),
        ({"group": "new", "members": [file]}, 404, "NoSuchSession"),  # no files of the machine
        ({"group": "new", "members": [ended.id]}, 404, "NoSuchSession"),
    ):
        told = http.post("/groups", json=asked)
        assert (told.status_code, told.json()["error"]) == (status, name), told.text
    for path, asked, status, name in (
        ("/groups/nobody/checkpoints", {}, 404, "UnknownGroup"),
        ("/groups/refused/restore", {"record": "G9"}, 404, "UnknownGroup"),
        ("/groups/refused/restore", {}, 400, "BadRequest"),
        ("/groups/refused/restore", {"undo": True}, 409, "GroupRefused"),
        ("/groups/refused/checkpoints", {"timeout": -1}, 400, "BadRequest"),
    ):
        told = http.post(path, json=asked)
        assert (told.status_code, told.json()["error"]) == (status, name), told.text
    told = http.post("/groups/refused/checkpoints", content='{"timeout": NaN}')
    assert told.status_code == 400 and "NaN is no number" in told.json()["message"]
    assert http.get("/groups/nobody").status_code == 404


async def test_the_clients_know_groups(server: Server, pair: Pair) -> None:
    with closing(Client.at(server.url, token="owner", kernel=pair[0].id, timeout=120)) as client:
        made = client.create_group("clients", pair[0].path, pair[1].path)
        assert [one.name for one in made.members] == ["a", "b"]
        record = client.checkpoint_group("clients", "one")
        assert record.is_complete and record.title == "G1" and set(record.members) == {"a", "b"}
        pair[1].run("x = 2")
        end = time.monotonic() + PATIENCE
        while client.group("clients").members[1].at == "G1":  # its checkpoint comes after the reply
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        plan = client.restore_group("clients", -1, dry_run=True)
        assert [one.name for one in plan.members["b"].differences.changed or ()] == ["x"]
        done = client.restore_group("clients", "one")
        assert done.record == record and done.safety is not None and values(pair) == ["1", "1"]
        with pytest.raises(UnknownGroup):
            client.group("nobody")
        with pytest.raises(GroupRefused):
            client.create_group("clients", pair[0].path)
        async with await AsyncClient.at(server.url, token="owner", kernel=pair[0].id) as other:
            found = {one.name: one for one in await other.groups()}
            assert found["clients"].records[0] == record
            undone = await other.restore_group("clients", undo=True, member=None)
            assert undone.title == "G2" and values(pair) == ["1", "2"]
            pair[1].begin("while True: pass")
            with pytest.raises(GroupFailed, match="busy"):
                await other.checkpoint_group("clients", wait=0)
    file = str(server.root / "runtime" / f"kernel-{pair[0].id}.json")
    with (
        Client.from_connection_file(file) as direct,
        pytest.raises(BadRequest, match=r"Client\.at"),
    ):
        direct.groups()
