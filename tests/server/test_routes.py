"""Every route, used as it is meant to be; every answer is what the OpenAPI document says."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from jupyter_timetravel.server.handlers import HANDLERS
from tests.server.server_world import Server, messages
from tests.waiting import until


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    with server.as_user() as http:
        return http.get("/openapi.json").json()


class Checked:
    """Requests whose answers must be of the document's form."""

    def __init__(self, http: httpx.Client, document: dict[str, Any]) -> None:
        self._http = http
        self._document = document
        self.session = ""

    def __call__(self, verb: str, path: str, status: int = 200, **options: Any) -> Any:
        answer = self._http.request(verb, f"/sessions/{self.session}{path}", **options)
        assert answer.status_code == status, answer.text
        place = re.sub(r"/checkpoints/[^/]+", "/checkpoints/{checkpoint}", path).partition("?")[0]
        operation = self._document["paths"][f"/sessions/{{session}}{place}"][verb.lower()]
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        whole = {**schema, "components": self._document["components"]}
        result = answer.json()
        jsonschema.Draft202012Validator(whole).validate(result)
        return result


@pytest.fixture
def ask(http: httpx.Client, document: dict[str, Any]) -> Checked:
    return Checked(http, document)


def on_disk(ask: Checked) -> list[int]:
    """The numbers of those whose variables are on the disk."""
    return [
        record["number"]
        for record in ask("GET", "/checkpoints")["checkpoints"]
        if any(c["kind"] == "namespace" and c["state"] == "ready" for c in record["captures"])
    ]


def test_the_document_has_every_verb_of_every_handler_and_no_other(
    document: dict[str, Any],
) -> None:
    verbs = ("get", "post", "patch", "delete", "put")
    handled = {}
    for path, handler, *_ in HANDLERS[:-1]:  # the last is for whatever else is asked
        place = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", path).replace("/?", "/")
        own = {name for name in verbs if name in vars(handler)}
        handled[place] = own
    told = {path: set(item) - {"parameters"} for path, item in document["paths"].items()}
    assert told == handled
    assert document["openapi"].startswith("3.1")
    ids = [op["operationId"] for item in document["paths"].values()
           for verb, op in item.items() if verb != "parameters"]  # fmt: skip
    assert len(set(ids)) == len(ids)


def test_a_running_session(server: Server, start: Any, http: httpx.Client, ask: Checked) -> None:
    kernel = start("live/a.ipynb")
    ask.session = kernel.id
    kernel.run("x = 1")
    kernel.run("y = [1, 2]; open('f', 'w').write('one');")

    about = ask("GET", "")
    assert (about["live"], about["notebook"], about["time_travel"]) == (True, "live/a.ipynb", True)
    assert about["file"] == str(server.notebooks / "live" / "a.ipynb")
    found = http.get("/sessions", params={"notebook": "live/a.ipynb"}).json()["sessions"]
    assert [(one["id"], one["kernel_id"]) for one in found] == [(kernel.id, kernel.id)]
    # the same session by its timeline
    by_timeline = http.get(f"/sessions/{about['timeline']}").json()
    assert by_timeline["kernel_id"] == kernel.id

    made = ask("POST", "/checkpoints", 201, json={"comment": "before", "label": "a/b", "pin": True})
    number, id = made["checkpoint"]["number"], made["checkpoint"]["id"]
    until(lambda: number in on_disk(ask))  # written in the background
    assert ask("GET", "/checkpoints/a%2Fb")["checkpoint"]["id"] == id
    assert ask("GET", f"/checkpoints/{number}")["variables"]["x"]["value"] == "1"
    kernel.run("x = 2; z = 3; open('f', 'w').write('two');")
    assert ask("GET", "/checkpoints/-1")["cells"][0]["source"].startswith("x = 2")
    chosen = ask("GET", "/checkpoints?include_auto=false")
    assert [one["number"] for one in chosen["checkpoints"]] == [number]
    line = ask("GET", f"/checkpoints?history={number}")["checkpoints"]
    assert [one["number"] for one in line] == [0, 1, 2, number]
    assert ask("GET", "/status")["timeline"] == about["timeline"]
    assert len(ask("GET", "/cells")["cells"]) == 3
    assert len(ask("GET", f"/cells?since={number}")["cells"]) == 1
    told = ask("GET", f"/diff?a={number}")
    assert [one["name"] for one in told["variables"]["added"]] == ["z"]
    assert [one["path"] for one in told["files"]] == ["f"]
    assert ask("GET", f"/diff?a={number}&b={number}")["files"] == []
    ask("GET", "/outside?each=true")

    plan = ask("POST", "/restore", json={"checkpoint": number, "dry_run": True})
    assert plan["dry_run"] and plan["safety"] is None
    assert kernel.run("print(x)") == "2"
    done = ask("POST", "/restore", json={"checkpoint": "a/b"})
    assert done["checkpoint"]["id"] == id and done["safety"]["reason"] == "safety"
    assert kernel.run("print(x, open('f').read(), 'z' in dir())") == "1 one False"
    ask("POST", "/restore", json={"undo": True})
    assert kernel.run("print(x, z)") == "2 3"
    brought = ask("POST", "/restore", json={"checkpoint": number, "vars": ["x"]})
    assert brought["names"] == ["x"] and kernel.run("print(x, z)") == "1 3"
    kernel.run("open('f', 'w').write('three'); open('g', 'w').write('g');")
    files = ask("POST", "/restore", json={"checkpoint": number, "paths": ["f"]})
    assert [one["path"] for one in files["files"]] == ["f"]
    assert kernel.run("print(x, z, open('f').read(), open('g').read())") == "1 3 one g"
    ask("POST", "/restore", json={"checkpoint": number, "only": "files"})
    assert kernel.run("print(x, z, open('f').read())") == "1 3 one"
    again = ask("POST", "/replay", json={"checkpoint": 1, "until": 2})
    assert [one["outcome"] for one in again["cells"]] == ["ok"]
    dry = ask("POST", "/replay", json={"checkpoint": 0, "until": 2, "dry_run": True})
    assert len(dry["not_run"]) == 2
    verified = ask("POST", "/verify", json={"checkpoint": number})["verified"]
    assert [one["problems"] for one in verified] == [[]]
    ask("POST", "/verify")
    ask("POST", "/reset", json={})
    ask("POST", "/resume", 404, json={})  # this notebook never had another kernel

    patched = ask(
        "PATCH", "/checkpoints/a%2Fb", json={"label": "c", "comment": "other", "pinned": False}
    )["checkpoint"]
    assert (patched["id"], patched["label"], patched["comment"]) == (id, "c", "other")
    assert patched["pinned"] is False
    assert ask("PATCH", f"/checkpoints/{id}", json={"label": None})["checkpoint"]["label"] is None
    assert ask("DELETE", "/checkpoints/1")["deleted"]["number"] == 1
    ask("GET", "/checkpoints/1", 404)
    assert ask("GET", "/config")["config"]["auto"] == "cell"
    assert ask("PATCH", "/config", json={"auto": "off"})["config"]["auto"] == "off"


def test_what_is_wrong_is_told_and_nothing_is_done(start: Any, ask: Checked) -> None:
    kernel = start()
    ask.session = kernel.id
    kernel.run("x = 1")
    before = ask("GET", "/checkpoints")

    def refused(verb: str, path: str, status: int, **options: Any) -> str:
        told = ask(verb, path, status, **options)
        assert told["message"] and told["hint"]
        return str(told["error"])

    assert refused("GET", "/checkpoints/99", 404) == "UnknownCheckpoint"
    assert refused("POST", "/restore", 404, json={"checkpoint": "nothing"}) == "UnknownCheckpoint"
    assert refused("DELETE", "/checkpoints/-1", 409) == "DeleteRefused"
    for body in ({"checkpoint": 1, "what": 1}, {"checkpoint": True}, {"only": "memory"}, [], "x",
                 {"vars": ["x"], "only": "files"}, {"vars": ["x"], "paths": ["f"]},
                 {"vars": []}, {"paths": []}, {"dry_run": 1}):  # fmt: skip
        assert refused("POST", "/restore", 400, json=body) == "BadRequest"
    assert refused("POST", "/restore", 400, content=b"{") == "BadRequest"
    assert refused("POST", "/restore", 400, content=b"\xff") == "BadRequest"
    assert refused("GET", "/diff", 400) == "BadRequest"
    assert refused("GET", "/diff?a=1&a=2", 400) == "BadRequest"
    assert refused("GET", "/checkpoints?include_auto=1", 400) == "BadRequest"
    assert refused("GET", "/checkpoints?older=true", 400) == "BadRequest"
    assert refused("PATCH", "/config", 400, json={"auto": "sometimes"}) == "BadRequest"
    assert refused("PATCH", "/config", 400, json={"what": 1}) == "BadRequest"
    # all of a change, or nothing of it
    body = {"comment": "new", "label": "12"}
    assert refused("PATCH", "/checkpoints/1", 400, json=body) == "BadRequest"
    assert refused("PATCH", "/checkpoints/1", 400, json={}) == "BadRequest"
    assert refused("GET", "/events", 400) == "BadRequest"
    after = ask("GET", "/checkpoints")
    held = [[(one["id"], one["comment"], one["label"]) for one in told["checkpoints"]]
            for told in (before, after)]  # fmt: skip
    assert held[0] == held[1]
    assert kernel.run("print(x)") == "1"


def test_a_stored_session(server: Server, start: Any, ask: Checked, http: httpx.Client) -> None:
    kernel = start("past/a.ipynb")
    kernel.run("x = 1; open('f', 'w').write('one');")
    kernel.run("x = 2; open('f', 'w').write('two');")
    kernel.run("x = 3; open('f', 'w').write('three');")
    timeline = http.get(f"/sessions/{kernel.id}").json()["timeline"]
    ask.session = kernel.id
    until(lambda: 3 in on_disk(ask))  # written in the background
    server.end(kernel)
    ask.session = timeline

    about = ask("GET", "")
    assert (about["live"], about["state"], about["head"]) == (False, "stored", 3)
    found = http.get("/sessions", params={"notebook": "past/a.ipynb", "live": "false"}).json()
    assert [one["id"] for one in found["sessions"]] == [timeline]
    assert http.get(f"/sessions/{timeline[:8]}").json()["id"] == timeline
    records = ask("GET", "/checkpoints")["checkpoints"]
    assert [one["number"] for one in records] == [0, 1, 2, 3]
    engines = {c["engine"]: c["state"] for c in records[3]["captures"]}
    assert engines["fork"] == "evicted" and engines["dill"] == "ready"
    assert ask("GET", "/checkpoints/2")["variables"]["x"]["value"] == "2"
    assert [one["source"][:5] for one in ask("GET", "/cells")["cells"]] == [
        "x = 1",
        "x = 2",
        "x = 3",
    ]
    told = ask("GET", "/diff?a=1&b=2")
    assert [one["name"] for one in told["variables"]["changed"]] == ["x"]
    assert [one["path"] for one in told["files"]] == ["f"]

    path = server.notebooks / "past" / "f"
    plan = ask("POST", "/restore", json={"checkpoint": 1, "dry_run": True})
    assert [one["path"] for one in plan["files"]] == ["f"] and path.read_text() == "three"
    done = ask("POST", "/restore", json={"checkpoint": 1})
    assert path.read_text() == "one" and done["checkpoint"]["is_head"]
    undone = ask("POST", "/restore", json={"undo": True})
    assert undone["checkpoint"]["id"] == done["safety"]["id"]
    assert path.read_text() == "three"

    ask("PATCH", "/checkpoints/2", json={"label": "two", "comment": "c", "pinned": True})
    assert ask("DELETE", "/checkpoints/two", 409)["error"] == "DeleteRefused"
    ask("PATCH", "/checkpoints/two", json={"pinned": False})
    assert ask("DELETE", "/checkpoints/two")["deleted"]["number"] == 2
    assert 2 not in [one["number"] for one in ask("GET", "/checkpoints")["checkpoints"]]
    verified = ask("POST", "/verify", json={"checkpoint": 3})["verified"]
    assert [(one["checkpoint"]["number"], one["problems"]) for one in verified] == [(3, [])]
    for verb, place in (("POST", "/replay"), ("POST", "/resume"), ("POST", "/reset"),
                        ("GET", "/status"), ("GET", "/outside"), ("GET", "/config")):  # fmt: skip
        body = {"checkpoint": 1} if place == "/replay" else {}
        options = {} if verb == "GET" else {"json": body}
        assert ask(verb, place, 409, **options)["error"] == "NotRunning"

    # the next kernel goes on there, and then the timeline is that kernel's session
    kernel = start("past/a.ipynb")
    assert ask("GET", "")["kernel_id"] == kernel.id
    done = ask("POST", "/resume", json={})
    # the kernel has said at its start that it can
    assert kernel.run("print(x, open('f').read())").splitlines()[-1] == "3 three"
    assert ask("POST", "/restore", json={"checkpoint": 1})["checkpoint"]["number"] == 1


def test_exports(server: Server, start: Any, ask: Checked, http: httpx.Client) -> None:
    kernel = start("out/a.ipynb")
    ask.session = kernel.id
    kernel.run("x = 1")
    kernel.run("y = x + 1")
    whole = ask("POST", "/export", json={"path": "out/all.ttl"})
    target = server.notebooks / "out" / "all.ttl"
    assert whole["bytes"] == target.stat().st_size and whole["checkpoints"] == 3
    assert ask("POST", "/export", 409, json={"path": "out/all.ttl"})["error"] == "ExportRefused"
    ask("POST", "/export", json={"path": "out/all.ttl", "force": True, "checkpoint": 2})
    cells = ask("POST", "/export", json={"path": "out/clean.ipynb", "format": "notebook"})
    written = json.loads((server.notebooks / "out" / "clean.ipynb").read_text())
    assert [cell["source"] for cell in written["cells"]] == [["x = 1"], ["y = x + 1"]]
    assert cells["path"] == "out/clean.ipynb"
    sent = http.post(f"/sessions/{kernel.id}/export", json={"checkpoint": 2})
    assert sent.headers["Content-Type"] == "application/zstd"
    assert (
        sent.content[:4] == b"\x28\xb5\x2f\xfd"
        and "export.ttl" in sent.headers["Content-Disposition"]
    )
    sent = http.post(f"/sessions/{kernel.id}/export", json={"format": "notebook", "checkpoint": 1})
    assert [cell["source"] for cell in sent.json()["cells"]] == [["x = 1"]]
    with http.stream(
        "POST",
        f"/sessions/{kernel.id}/export",
        json={"path": "out/b.ttl"},
        headers={"Accept": "text/event-stream"},
    ) as answer:
        told = list(messages(answer))
    assert [one["type"] for one in told] == ["info", "result"]
    assert (server.notebooks / "out" / "b.ttl").stat().st_size == told[-1]["result"]["bytes"]


def test_a_kernel_without_time_travel(start: Any, ask: Checked) -> None:
    kernel = start(kernel="python3")
    ask.session = kernel.id
    assert ask("GET", "")["time_travel"] is False
    assert ask("GET", "/checkpoints", 501)["error"] == "NoTimeTravel"
    assert ask("POST", "/restore", 501, json={})["error"] == "NoTimeTravel"
