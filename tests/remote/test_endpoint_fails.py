"""The S3 endpoint goes away, is too busy, or refuses, in the middle of a push and of a pull."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE
from tests.exchange.world import World
from tests.remote.conftest import Command, Endpoint, Remote, sessions
from tests.remote.test_faults import started
from tests.waiting import until

Fault = Callable[[str, str, int], "tuple[int, str] | str | None"]
"""Asked with method, path and how many requests of that method there were: None, an answer's status
and code, `cut` (half of the answer, then the connection's end) or `gone` (from now on nobody
answers)."""


class Between:
    """A real HTTP server between the client and the S3 endpoint, which can fail."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.fault: Fault = lambda *_: None
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._behind = endpoint.url.removeprefix("http://")
        self._open: set[socket.socket] = set()
        self._port = 0
        self._ending: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, at the same address as before."""
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                between._open.add(self.connection)

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _serve(self) -> None:
                between.serve(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

        if self._ending is not None:
            self._ending.join()  # it has the port until then
        self.is_gone, self._ending = False, None
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens any more, and what was open is cut."""
        self._go()
        assert self._ending is not None
        self._ending.join()

    def _go(self) -> None:
        """From now on nothing is answered."""
        with self._lock:
            if self._ending is None:
                self.is_gone = True
                self._ending = threading.Thread(target=self._end)
                self._ending.start()

    def _end(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for one in tuple(self._open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._open.clear()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        method = handler.command
        with self._lock:
            count = self.counts[method] = self.counts.get(method, 0) + 1
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        found = self.fault(method, handler.path, count)
        if found == "gone":
            self._go()
        if found == "gone" or self.is_gone:
            handler.close_connection = True
            return
        if isinstance(found, tuple):
            status, code = found
            data = f"<Error><Code>{code}</Code><Message>of the test</Message></Error>".encode()
            headers = [("Content-Type", "application/xml")]
        else:
            status, headers, data = self._ask(handler, method, body)
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                handler.send_header(name, value)
        length = {n.lower(): v for n, v in headers}.get("content-length", "0")
        handler.send_header("Content-Length", length if method == "HEAD" else str(len(data)))
        handler.end_headers()
        if found == "cut":
            handler.wfile.write(data[: len(data) // 2])
            handler.close_connection = True
        elif method != "HEAD":
            handler.wfile.write(data)

    def _ask(self, handler: BaseHTTPRequestHandler, method: str, body: bytes) -> Any:
        there = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            there.request(method, handler.path, body, dict(handler.headers))
            answer = there.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            there.close()


@pytest.fixture
def between(endpoint: Endpoint) -> Iterator[Between]:
    made = Between(endpoint)
    yield made
    made.stop()


@pytest.fixture
def env(between: Between, s3: Remote) -> dict[str, str]:
    return {**s3.env, "AWS_ENDPOINT_URL": between.url}


def is_content(path: str) -> bool:
    return "/objects/" in path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_goes_away(
    world: World,
    s3: Remote,
    between: Between,
    env: dict[str, str],
    first: Command,
    mine: Command,
    other: Path,
) -> None:
    """While content is sent, while the ref is, while content is fetched; then it is back."""
    sent = 0

    def in_the_middle(method: str, path: str, count: int) -> str | None:
        some = method == "PUT" and count >= 5 and s3.names("objects")
        return "gone" if some else None

    def at_the_end(method: str, path: str, count: int) -> str | None:
        return "gone" if method == "PUT" and "/refs/" in path else None

    for fault in (in_the_middle, at_the_end):
        between.counts.clear()
        between.fault = fault
        told = first("push", s3.url, status=1, **env)
        assert between.is_gone
        assert "do the same again" in told and "as it was" in told, told
        assert s3.names("refs") == [], "nothing is published"
        assert len(s3.names("objects")) > sent
        sent = len(s3.names("objects"))
        between.fault = lambda *_: None
        between.start()
    told = first("push", s3.url, **env)
    there = re.search(r"([\d,]+) were there", told)
    assert there and int(there[1].replace(",", "")) >= sent - 1, (
        told
    )  # a list says when it was made

    between.counts.clear()
    between.fault = lambda method, path, count: (
        "gone" if method == "GET" and is_content(path) and count > 8 else None
    )
    told = mine("pull", s3.url, status=1, **env)
    assert between.is_gone
    assert "do the same again" in told and "as it was" in told, told
    assert sessions(mine, other / "store") == [], "nothing is taken in"
    between.fault = lambda *_: None
    between.counts.clear()
    between.start()
    assert "pulled 6" in mine("pull", s3.url, **env)
    mine("check")


@pytest.mark.slow
def test_a_push_is_killed_in_the_middle(
    world: World, s3: Remote, between: Between, first: Command, mine: Command
) -> None:
    """What had travelled is not sent again; who looks meanwhile sees nothing."""
    killed = threading.Event()

    def held_up(method: str, path: str, count: int) -> tuple[int, str] | None:
        if method != "PUT" or count <= 3:
            return None
        killed.wait()
        return 503, "SlowDown"

    between.fault = held_up
    remote = Remote(s3.url, s3.store, {**s3.env, "AWS_ENDPOINT_URL": between.url})
    child = started("push", s3.url, store=world.store, world=world, remote=remote)
    try:
        until(lambda: len(s3.names("objects")) == 3, "some have travelled")
        assert child.poll() is None
    finally:
        child.kill()
        killed.set()
    child.communicate(timeout=PATIENCE)
    assert s3.names("refs") == []
    assert "has no timeline" in mine("pull", s3.url, status=1, **s3.env)
    told = first("push", s3.url, **s3.env)
    there = re.search(r"([\d,]+) were there", told)
    assert there and int(there[1].replace(",", "")) >= 3, told
    assert "pulled 6" in mine("pull", s3.url, **s3.env)
    mine("check")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_busy_now_and_then(
    world: World, s3: Remote, between: Between, env: dict[str, str], first: Command, mine: Command
) -> None:
    """Errors of the server, answers that end half way: tried again, and all arrives."""
    kinds = [(500, "InternalError"), (503, "SlowDown"), "cut"]
    met = set()

    def fault(method: str, path: str, count: int) -> tuple[int, str] | str | None:
        if count % 4:
            return None
        kind = kinds[count // 4 % 3]
        if kind == "cut" and not is_content(path):
            return None  # a list that ends half way is not asked for again
        met.add((method, kind))
        return kind  # type: ignore[return-value]

    between.fault = fault
    first("push", s3.url, **env)
    assert len(s3.names("refs")) == 1
    assert "pulled 6" in mine("pull", s3.url, **env)
    assert {("PUT", kind) for kind in kinds} | {("GET", kind) for kind in kinds} <= met
    mine("check")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((503, "SlowDown"), "SlowDown.*do the same again"),
        ((403, "RequestTimeTooSkewed"), "RequestTimeTooSkewed.*clock"),
        ((403, "SignatureDoesNotMatch"), "SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_it_refuses_from_some_moment_on(
    world: World,
    s3: Remote,
    between: Between,
    env: dict[str, str],
    first: Command,
    mine: Command,
    other: Path,
    answer: tuple[int, str],
    said: str,
) -> None:
    between.fault = lambda method, path, count: answer if method == "PUT" and count > 4 else None
    told = first("push", s3.url, status=1, **env)
    assert re.search(said, " ".join(told.split())), told
    assert s3.names("refs") == []
    between.fault = lambda *_: None
    first("push", s3.url, **env)
    between.counts.clear()
    between.fault = lambda method, path, count: (
        answer if method == "GET" and is_content(path) and count > 6 else None
    )
    told = mine("pull", s3.url, status=1, **env)
    assert re.search(said, " ".join(told.split())), told
    assert sessions(mine, other / "store") == []
    between.fault = lambda *_: None
    assert "pulled 6" in mine("pull", s3.url, **env)
    mine("check")
