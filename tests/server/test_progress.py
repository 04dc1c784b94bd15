"""Long operations: their progress, clients that go away, and everybody else meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import httpx

from tests.conftest import PATIENCE
from tests.server.server_world import Server, messages
from tests.waiting import until

STREAM = {"Accept": "text/event-stream"}


def test_a_replay_tells_its_progress(http: httpx.Client, start: Any) -> None:
    kernel = start()
    for code in ("x = 1", "import sys; print('out', x)", "print('err', file=sys.stderr)", "1 / 1"):
        kernel.run(code)
    place = f"/sessions/{kernel.id}/replay"
    with http.stream("POST", place, json={"checkpoint": 1}, headers=STREAM) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        told = list(messages(answer))
    assert told[-1]["type"] == "result" and len(told[-1]["result"]["cells"]) == 3
    info = [one["text"] for one in told if one["type"] == "info"]
    assert "bringing memory back" in info and "cell 2 of 3: print('err', file=sys.stderr)" in info
    printed = {kind: "".join(one["text"] for one in told if one["type"] == kind)
               for kind in ("stdout", "stderr")}  # fmt: skip
    assert "out 1\n" in printed["stdout"] and printed["stderr"] == "err\n"


def test_an_error_is_the_last_message(http: httpx.Client, start: Any) -> None:
    kernel = start()
    kernel.run("x = 1")
    place = f"/sessions/{kernel.id}/restore"
    with http.stream("POST", place, json={"checkpoint": 99}, headers=STREAM) as answer:
        (told,) = messages(answer)
    assert (told["type"], told["error"], told["status"]) == ("error", "UnknownCheckpoint", 404)
    # what is no request at all is refused before anything is streamed
    assert http.post(place, json={"checkpont": 1}, headers=STREAM).status_code == 400


def test_it_goes_on_when_its_client_goes_away(
    server: Server, http: httpx.Client, start: Any
) -> None:
    kernel = start()
    kernel.run("import pathlib, time")
    kernel.run("n = 0")
    kernel.run("time.sleep(1); n += 1; pathlib.Path('first').touch()")
    kernel.run("time.sleep(1); n += 1; pathlib.Path('second').touch()")
    place = f"/sessions/{kernel.id}/replay"
    for runs, headers in ((2, STREAM), (3, {})):
        with server.as_user() as leaving, httpx.Client(timeout=0.7) as impatient:
            url = f"{str(leaving.base_url).rstrip('/')}{place}"
            options: dict[str, Any] = {"json": {"checkpoint": 2}}
            options["headers"] = {**leaving.headers, **headers}
            with (
                contextlib.suppress(httpx.ReadTimeout),
                impatient.stream("POST", url, **options) as answer,
            ):
                next(messages(answer))  # and no more: the connection is closed

        def made(runs: int = runs) -> bool:
            told = http.get(f"/sessions/{kernel.id}/checkpoints").json()["checkpoints"]
            return sum("'second'" in one["code"] for one in told) == runs

        until(made, "the last of its cells has left its checkpoint once more")
        assert kernel.run("print(n)") == "2"
        files = {path.name for path in (server.notebooks / kernel.path).parent.iterdir()}
        assert {"first", "second"} <= files


def test_others_are_answered_while_a_long_one_runs(
    server: Server, http: httpx.Client, start: Any
) -> None:
    busy, other = start(), start()
    go = (server.notebooks / busy.path).parent / "go"
    busy.run("import pathlib, time")
    newest = http.get(f"/sessions/{busy.id}/checkpoints/-1").json()["checkpoint"]
    assert newest["number"] == 1  # it is made, without the file
    busy.begin(
        "pathlib.Path('begun').touch()\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    )
    until(go.with_name("begun").exists)
    go.touch()  # while the cell runs: what is made while none does is another program's, and stays
    busy.wait()
    other.run("y = 1")
    results: list[Any] = []

    def replay() -> None:
        answer = http.post(f"/sessions/{busy.id}/replay", json={"checkpoint": 1})
        results.append(answer.json())

    thread = threading.Thread(target=replay)
    with http.stream("GET", f"/sessions/{busy.id}/events", headers=STREAM) as answer:
        events = messages(answer)
        assert next(events)["type"] == "listening"
        thread.start()
        names = (event["content"]["event"] for event in events)
        assert any(name == "replay_progress" for name in names)
    # the cell runs now, and waits: going back has taken the file away
    assert not go.exists()
    for place in (f"/sessions/{busy.id}/checkpoints", f"/sessions/{busy.id}/status",
                  f"/sessions/{other.id}/checkpoints/-1", "/sessions"):  # fmt: skip
        assert http.get(place).status_code == 200
    told = http.post(f"/sessions/{busy.id}/restore", json={"checkpoint": 1})
    assert told.status_code == 409 and told.json()["error"] == "RestoreRefused"
    made = http.post(f"/sessions/{other.id}/restore", json={"checkpoint": 1})
    assert made.status_code == 200
    assert not results
    go.touch()
    thread.join()
    assert [one["outcome"] for one in results[0]["cells"]] == ["ok"]


def test_a_kernel_that_ends_leaves_nobody_waiting(
    server: Server, http: httpx.Client, start: Any
) -> None:
    kernel = start()
    kernel.run("x = 1")
    answers: list[httpx.Response] = []

    def begin() -> threading.Thread:
        """A checkpoint that waits for a cell which never ends."""
        kernel.begin("import time; time.sleep(1000)")
        sent = threading.Event()

        def trace(name: str, _: Any) -> None:
            if name.endswith("receive_response_headers.started"):
                sent.set()

        def ask() -> None:
            place = f"/sessions/{kernel.id}/checkpoints"
            answers.append(http.post(place, extensions={"trace": trace}))

        thread = threading.Thread(target=ask)
        thread.start()
        assert sent.wait(PATIENCE)
        http.get(f"/sessions/{kernel.id}/status")  # comes after it, and is answered
        return thread

    waiting = begin()
    os.kill(kernel.pid, signal.SIGKILL)  # the server starts it again
    waiting.join(PATIENCE)
    told = answers.pop()
    assert (told.status_code, told.json()["error"]) == (502, "KernelGone")
    kernel.wait()
    kernel.run("y = 1")
    newest = http.get(f"/sessions/{kernel.id}/checkpoints/-1").json()["checkpoint"]
    assert newest["code"] == "y = 1"

    waiting = begin()
    server.restart(kernel)
    waiting.join(PATIENCE)
    told = answers.pop()  # its cell ended with its process: perhaps the checkpoint was made
    assert told.status_code == 201 or told.json()["error"] == "KernelGone"
    kernel.run("z = 1")
    newest = http.get(f"/sessions/{kernel.id}/checkpoints/-1").json()["checkpoint"]
    assert newest["code"] == "z = 1"

    waiting = begin()
    server.end(kernel)
    waiting.join(PATIENCE)
    told = answers.pop()
    assert told.status_code == 201 or told.json()["error"] == "KernelGone"
    assert http.get(f"/sessions/{kernel.id}").status_code == 404


def test_a_stream_of_events_ends_with_its_kernel(
    server: Server, http: httpx.Client, start: Any
) -> None:
    kernel = start()
    before = len(server.log.read_text())  # of other tests
    for end in (server.restart, server.end):
        with http.stream("GET", f"/sessions/{kernel.id}/events", headers=STREAM) as answer:
            events = messages(answer)
            assert next(events)["type"] == "listening"
            end(kernel)
            last = list(events)[-1]
            assert (last["type"], last["error"]) == ("error", "KernelGone")
    assert "Traceback" not in server.log.read_text()[before:]
