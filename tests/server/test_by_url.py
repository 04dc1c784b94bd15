"""Client and AsyncClient through a server: what they give over a kernel's own connection."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from typing import Any

import pytest

from jupyter_timetravel import AsyncClient, Client
from jupyter_timetravel.offline.stored import NoSuchSession, NotRunning
from jupyter_timetravel.server.errors import NotAllowed, ServerUnreachable
from jupyter_timetravel.wire import NoTimeTravel, RequestTimeout
from kernel_runtime.errors import BadRequest, TimeTravelError, UnknownCheckpoint
from kernel_runtime.timeline import DeleteRefused
from tests.server.server_world import Server
from tests.waiting import until

VARYING = {
    "took_ms", "memory", "last_cow_tax_ms", "ancestors", "text", "captures", "counts", "bytes",
}  # fmt: skip
"""What a second look tells differently, as captures become ready meanwhile, or a function."""


def plain(value: Any) -> Any:
    """A result as plain values."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        told = {name: plain(getattr(value, name)) for name in names if name not in VARYING}
        if hasattr(value, "history"):
            told["history"] = value.history
        return told
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in VARYING}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


LOOKS = (
    lambda client: client.status(),
    lambda client: client.list(),
    lambda client: client.list(include_auto=False),
    lambda client: client.list(history=2),
    lambda client: client.get(-1),
    lambda client: client.get("a/b c%2F?#"),
    lambda client: client.cells(),
    lambda client: client.cells(1, 2),
    lambda client: client.diff(1),
    lambda client: client.diff(1, 2),
    lambda client: client.outside(),
    lambda client: client.config(),
    lambda client: client.restore(1, dry_run=True),
    lambda client: client.replay(1, until=2, dry_run=True),
    lambda client: client.verify("a/b c%2F?#"),
    lambda client: client.pin(1, True),
    lambda client: client.label(1, "one"),
    lambda client: client.comment(1, "said"),
)
CHANGES = (
    lambda client: client.checkpoint("made", label="L", pin=True),
    lambda client: client.restore("L"),
    lambda client: client.bring(1, ["x"]),
    lambda client: client.replay(1, until=2),
    lambda client: client.restore(undo=True),
    lambda client: client.reset(),
)
ERRORS = (
    (lambda client: client.restore(99), UnknownCheckpoint),
    (lambda client: client.get("nothing"), UnknownCheckpoint),
    (lambda client: client.delete(-1), DeleteRefused),
    (lambda client: client.config(auto="sometimes"), BadRequest),
    (lambda client: client.checkpoint("a\0b"), BadRequest),
    (lambda client: client.bring(1, ["no_such_name"]), TimeTravelError),
)


async def test_all_four_give_the_same(server: Server, start: Any) -> None:
    kernel = start("by-url/a.ipynb")
    for code in ("x = 1", "y = [1, 2]; open('f', 'w').write('one');", "x = 2; z = 3"):
        kernel.run(code)
    file = str(server.root / "runtime" / f"kernel-{kernel.id}.json")
    async with (
        AsyncClient.from_connection_file(file) as direct_async,
        await AsyncClient.at(server.url, token="owner", notebook="by-url/a.ipynb") as by_url_async,
    ):
        with (
            Client.from_connection_file(file) as direct,
            Client.at(server.url, token="owner", kernel=kernel.id) as by_url,
        ):
            made = direct.checkpoint("said", label="a/b c%2F?#")
            until(
                lambda: any(
                    (capture.kind, capture.state) == ("namespace", "ready")
                    for capture in direct.get(made.number).captures
                )
            )  # written in the background
            firsts = [client.get(made.number).captures[0] for client in (direct, by_url)]
            # how much of a frozen process is its own is measured again and again
            first, by_another_way = (dataclasses.replace(one, bytes=0) for one in firsts)
            assert first == by_another_way
            for look in LOOKS:
                wanted = plain(look(direct))
                assert plain(look(by_url)) == wanted
                assert plain(await look(direct_async)) == wanted
                assert plain(await look(by_url_async)) == wanted
            for ask, kind in ERRORS:
                told = []
                for client in (direct, by_url):
                    with pytest.raises(kind) as caught:
                        ask(client)
                    told.append((type(caught.value), str(caught.value)))
                for client in (direct_async, by_url_async):
                    with pytest.raises(kind) as caught:
                        await ask(client)
                    told.append((type(caught.value), str(caught.value)))
                assert told == [told[0]] * 4
            for change in CHANGES:
                made = [change(direct), change(by_url)]
                made += [await change(direct_async), await change(by_url_async)]
                assert len({type(one) for one in made}) == 1
                assert len({tuple(plain(one)) for one in made}) == 1  # the same fields


def test_events_by_url(server: Server, start: Any) -> None:
    kernel = start()
    with Client.at(server.url, token="owner", kernel=kernel.id) as client:
        with client.events(timeout=60) as events, client.events(timeout=60) as others:
            kernel.run("x = 1")
            for stream in (events, others):
                made = next(event for event in stream if event.name == "checkpoint_created")
                assert made.checkpoint is not None and made.checkpoint.code == "x = 1"
                assert made.checkpoint.history == client.get(1).history
            client.restore(1)
            names = []
            for event in events:
                assert event.missed == 0
                names.append(event.name)
                if event.name == "restore_finished":
                    break
            assert {"restore_started", "restore_progress"} <= set(names)
            others.timeout = 0.01
            assert all(event.name for event in others)
        assert list(events) == []  # closed


async def test_events_by_url_with_asyncio(server: Server, start: Any) -> None:
    kernel = start()
    kernel.run("x = 1")
    async with await AsyncClient.at(server.url, token="owner", kernel=kernel.id) as client:
        events = await client.events(timeout=60)
        made = await client.checkpoint("said")
        async for event in events:
            if event.name == "checkpoint_created":
                assert event.checkpoint is not None and event.checkpoint.id == made.id
                break
        await events.aclose()  # type: ignore[attr-defined]
        assert (await client.status()).head is not None


def test_a_stored_session_by_url(server: Server, start: Any) -> None:
    kernel = start("by-url-past/a.ipynb")
    kernel.run("x = 1; open('f', 'w').write('one');")
    kernel.run("x = 2; open('f', 'w').write('two');")
    with Client.at(server.url, token="owner", kernel=kernel.id) as live:
        timeline = live.status().timeline
    server.end(kernel)
    for which in ({"session": timeline}, {"notebook": "by-url-past/a.ipynb"}):
        with Client.at(server.url, token="owner", **which) as client:
            assert [one.number for one in client.list()] == [0, 1, 2]
            assert [f.path for f in client.diff(1, 2).files] == ["f"]
            with pytest.raises(NotRunning):
                client.status()
            with pytest.raises(NotRunning), client.events():
                pass
            done = client.restore(1)
            assert done.safety is not None and done.safety.reason == "safety"
            assert (server.notebooks / "by-url-past" / "f").read_text() == "one"
            client.restore(undo=True)
            assert (server.notebooks / "by-url-past" / "f").read_text() == "two"
            with pytest.raises(NotRunning):
                client.restore(1, only="process")
            break
    with Client.at(f"{server.url}?token=owner", session=timeline) as client:
        assert client.get(1).variables["x"]["value"] == "1"


def test_what_does_not_work_is_told(server: Server, start: Any) -> None:
    kernel = start(kernel="python3")
    at = Client.at
    with pytest.raises(NotAllowed, match="allowed"):
        at(server.url, token="stranger", kernel=kernel.id)
    with pytest.raises(NoSuchSession):
        at(server.url, token="owner", kernel="0" * 32)
    with pytest.raises(NoSuchSession, match=r"no session of no\.ipynb"):
        at(server.url, token="owner", notebook="no.ipynb")
    with pytest.raises(BadRequest, match="one of"):
        at(server.url, token="owner")
    with pytest.raises(BadRequest, match="address"):
        at("localhost:8888", kernel=kernel.id)
    with pytest.raises(ServerUnreachable, match="URL complete"):
        at(server.url.removesuffix("user/name/"), token="owner", kernel=kernel.id)
    with socket.socket() as nobody:  # it does not listen, and nobody else gets its port
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="cannot be reached"):
            at(f"http://127.0.0.1:{port}/", kernel=kernel.id)
    with at(server.url, token="owner", kernel=kernel.id) as client, pytest.raises(NoTimeTravel):
        client.list()
    with at(server.url, token="reader", kernel=kernel.id) as client, pytest.raises(NotAllowed):
        client.restore(1)


def test_no_answer_in_time_is_told(server: Server, start: Any) -> None:
    kernel = start()
    go = (server.notebooks / kernel.path).parent / "go"
    kernel.run("import pathlib, time")
    kernel.begin("while not pathlib.Path('go').exists(): time.sleep(0.05)")
    with Client.at(server.url, token="owner", kernel=kernel.id) as client:
        client.timeout = 0.5
        with pytest.raises(RequestTimeout, match=r"checkpoint within 0\.5 seconds"):
            client.checkpoint()
        with pytest.raises(RequestTimeout, match=r"replay within 0\.5 seconds"):
            client.replay(0)
        client.timeout = 60
        go.touch()
        assert client.list()


def test_without_httpx_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from jupyter_timetravel import Client\n"
        "Client.at('http://localhost/', kernel='x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'jupyter_timetravel[http]'" in done.stderr
