"""Who may do what, on every route: without a token, with a cookie, as a user who may only read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from jupyter_timetravel.server.openapi import actions
from tests.server.house_rules import MAY
from tests.server.server_world import BASE, Kernel, Server

ROUTES = sorted(actions().items())
BODIES = {
    "/checkpoints": {"comment": "c"},
    "/replay": {"checkpoint": 0, "dry_run": True},
    "/restore": {"checkpoint": -1, "dry_run": True},
    "/export": {"format": "notebook"},
    "/apply": {"paths": ["/nothing"], "dry_run": True},
    "/groups": {"group": "permitted", "members": ["permissions/a.ipynb"]},
    "/groups/{group}/restore": {"record": "-1", "dry_run": True},
}
"""Requests that do as little as they can."""


@pytest.fixture(scope="module")
def kernel(server: Server) -> Iterator[Kernel]:
    made = server.start("permissions/a.ipynb")
    made.run("x = 1")
    with server.as_user() as http:
        assert send(http, "/groups", "POST", made.id).status_code == 201
        assert send(http, "/groups/{group}/checkpoints", "POST", made.id).status_code == 201
    yield made
    server.end(made)


def send(http: httpx.Client, path: str, verb: str, session: str, **options: Any) -> httpx.Response:
    place = path.replace("{session}", session).replace("{checkpoint}", "1")
    place = place.replace("{group}", "permitted")
    if verb == "PATCH":
        options["json"] = {"auto": "cell"} if path.endswith("config") else {"comment": "c"}
    elif verb == "POST":
        options["json"] = BODIES.get(path, BODIES.get(re.sub(r"^.*/", "/", path), {}))
    if path.endswith("/diff"):
        options["params"] = {"a": 0}
    return http.request(verb, place if place != "/" else "", **options)


@pytest.mark.parametrize(("route", "action"), ROUTES, ids=lambda one: " ".join(one))
def test_a_user_may_do_what_the_authorizer_lets_them(
    server: Server, kernel: Kernel, route: tuple[str, str], action: str
) -> None:
    for user, may in MAY.items():
        if route == ("/sessions/{session}/checkpoints/{checkpoint}", "DELETE"):
            with server.as_user() as http:  # there is one to delete
                number = http.post(f"/sessions/{kernel.id}/checkpoints").json()
                place = f"/sessions/{kernel.id}/checkpoints/{number['checkpoint']['id']}"
                http.post(f"/sessions/{kernel.id}/checkpoints")
            with server.as_user(user) as http:
                status = http.delete(place).status_code
        else:
            with server.as_user(user) as http:
                status = send(http, *route, kernel.id).status_code
        # what is allowed may still be refused for another reason, such as no earlier kernel
        assert (status == 403) == (action not in may), (user, status)
        answers = route[0].rsplit("/", 1)[-1] not in ("resume", "apply", "events")
        answers = answers and route != ("/groups", "POST")  # it is there
        assert status in ((200, 201, 403) if answers else (400, 403, 404, 409)), status


@pytest.mark.parametrize(("route", "action"), ROUTES, ids=lambda one: " ".join(one))
def test_nobody_who_is_not_known_learns_or_changes_anything(
    server: Server, kernel: Kernel, route: tuple[str, str], action: str
) -> None:
    with server.as_user() as http:
        before = http.get(f"/sessions/{kernel.id}/checkpoints").json()["parents"]
    for token in (None, "stranger", ""):
        with server.as_user(token) as http:
            told = send(http, *route, kernel.id)
            assert told.status_code == 403 and told.json()["error"] == "NotAllowed"
            # an id that exists is refused as one that does not
            assert send(http, *route, "0" * 32).text == told.text
    with server.as_user() as http:
        assert http.get(f"/sessions/{kernel.id}/checkpoints").json()["parents"] == before


@pytest.fixture
def browser(server: Server) -> Iterator[httpx.Client]:
    """One that has logged in: it has a cookie, and sends no token."""
    with httpx.Client(base_url=server.api, timeout=60) as http:
        login = http.get(f"{server.url}api/status", params={"token": "owner"})
        assert login.status_code == 200
        http.get(f"{server.url}no-such-page")  # pages set the cookie of the XSRF token
        assert http.get("/sessions").status_code == 200
        yield http


def test_a_cookie_alone_changes_nothing(browser: httpx.Client, kernel: Kernel) -> None:
    for route, _ in ROUTES:
        if route[1] != "GET":
            assert send(browser, *route, kernel.id).status_code == 403, route
    place = f"/sessions/{kernel.id}/checkpoints"
    made = browser.post(place, json={}, headers={"X-XSRFToken": browser.cookies["_xsrf"]})
    assert made.status_code == 201


def test_a_page_of_another_origin_gets_nothing(browser: httpx.Client, kernel: Kernel) -> None:
    evil = {"Origin": "http://evil.example", "Referer": "http://evil.example/"}
    for route, _ in ROUTES:
        told = send(browser, *route, kernel.id, headers=evil)
        assert told.status_code in (403, 404), route
        assert kernel.id not in told.text


def test_reading_never_changes_anything(server: Server, kernel: Kernel) -> None:
    with server.as_user() as http:
        for route, _ in ROUTES:
            if (route[0], "GET") not in dict(ROUTES):
                told = send(http, route[0], "GET", kernel.id)
                assert told.status_code == 405, route
                assert route[1] in told.headers["Allow"].split(", ")
        for verb in ("PUT", "HEAD"):
            assert send(http, "/sessions/{session}/restore", verb, kernel.id).status_code == 405


def test_the_server_warns_of_no_endpoint(server: Server) -> None:
    text = server.log.read_text()
    assert "jupyter_timetravel | extension was successfully loaded" in text
    assert "without @allow_unauthenticated" not in text


def test_it_is_below_the_base_url_only(server: Server) -> None:
    with server.as_user() as http:
        assert http.get("").json()["protocol_version"] == 1
        address = server.url.removesuffix(BASE)
        assert http.get(f"{address}/api/timetravel/sessions").status_code == 404
        document = http.get("/openapi.json").json()
        assert document["servers"] == [{"url": f"{BASE}api/timetravel"}]
        # what is not there is told like everything else
        told = http.get("/sessions/x/y/z")
        assert told.status_code == 404 and told.json()["error"] == "NoSuchSession"


# What an attacker with a token of little worth, or a broken client, may send


def test_a_body_that_is_too_large(server: Server, kernel: Kernel) -> None:
    with server.as_user() as http:
        place = f"/sessions/{kernel.id}/checkpoints"
        told = http.post(place, json={"comment": "x" * (1 << 20)})
        assert told.status_code == 413 and "1048576" in told.json()["message"]
        assert http.post(place, json={"comment": "x" * 20_000}).status_code == 400
        deep = b'{"comment":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert http.post(place, content=deep).status_code == 400
        huge = b'{"checkpoint": ' + b"9" * 10_000 + b"}"
        told = http.post(f"/sessions/{kernel.id}/restore", content=huge)
        assert told.status_code == 400


ODD = [
    "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%00", "%ff", "a%0ab", "0", "0" * 5, "0" * 33,
    "'%20OR%20'1'='1", "%F0%9F%98%80", "x" * 5000, "-", "00000000-0000-0000-0000-000000000000",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd[:20])
def test_an_odd_id_is_none(server: Server, kernel: Kernel, odd: str) -> None:
    with server.as_user() as http:
        for place in (f"/sessions/{odd}", f"/sessions/{odd}/checkpoints"):
            answer = _raw(http, place)
            assert answer.status_code in (400, 404), (place, answer.status_code)
        answer = _raw(http, f"/sessions/{kernel.id}/checkpoints/{odd}")
        assert answer.status_code in ((200,) if odd in ("0", "0" * 5) else (400, 404))


def _raw(http: httpx.Client, place: str) -> httpx.Response:
    """Send a path as it stands: httpx would tidy it up."""
    url = httpx.URL(str(http.base_url)).copy_with(
        raw_path=httpx.URL(str(http.base_url)).raw_path.rstrip(b"/") + place.encode()
    )
    return http.get(url)


def test_exports_stay_below_the_directory(server: Server, kernel: Kernel) -> None:
    outside = server.root / "outside"
    outside.mkdir()
    (server.notebooks / "leads-out").symlink_to(outside)
    (server.notebooks / "victim.ttl").symlink_to(outside / "victim.ttl")
    with server.as_user() as http:
        for path in ("../outside/a.ttl", "x/../../outside/a.ttl", "leads-out/a.ttl", "/../a.ttl",
                     str(outside / "a.ttl"), ".hidden/a.ttl", ".a.ttl", "a.txt", "a", "nb\0.ttl",
                     "victim.ttl", "no/such/folder/a.ttl", "a/" * 2000 + "a.ttl",
                     "permissions", "x" * 300 + ".ttl"):  # fmt: skip
            told = http.post(f"/sessions/{kernel.id}/export", json={"path": path, "force": True})
            assert told.status_code in (400, 409), (path[:50], told.text)
    assert list(outside.iterdir()) == []


def test_the_store_of_another_user_is_out_of_reach(
    server: Server, kernel: Kernel, start: Callable[..., Kernel]
) -> None:
    """No parameter names a store: what the server's user has is all there is."""
    with server.as_user() as http:
        for name in ("store", "path", "directory"):
            for value in ("/", "../other", str(server.root / "other")):
                told = http.get("/sessions", params={name: value})
                assert told.status_code == 400
        # a checkpoint of another kernel is none of this one's
        other = start()
        other.run("y = 1")
        id = http.get(f"/sessions/{other.id}/checkpoints/1").json()["checkpoint"]["id"]
        assert http.get(f"/sessions/{kernel.id}/checkpoints/{id}").status_code == 404
        body = {"checkpoint": id}
        assert http.post(f"/sessions/{kernel.id}/restore", json=body).status_code == 404
    assert kernel.run("print(x)") == "1"
