"""The ways to restore a kernel in a container: command line, HTTP, MCP. All give the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_world import agent
from tests.containers.conftest import container
from tests.exchange.conftest import call
from tests.server.server_world import Kernel, Server

Way = Callable[[dict[str, Any]], dict[str, Any]]
STATE = "print(x, open('f').read(), open(os.path.expanduser('~/h')).read(), next(it), os.getpid())"


def by_command(server: Server, kernel: Kernel) -> Way:
    """`jupyter timetravel restore NOTEBOOK …`."""
    book = server.notebooks / kernel.path

    def restore(asked: dict[str, Any]) -> dict[str, Any]:
        what = ["--undo"] if asked.get("undo") else [str(asked["checkpoint"])]
        told: dict[str, Any] = json.loads(call("restore", book, *what, "--json", **server.env))
        return told

    return restore


def by_http(server: Server, kernel: Kernel) -> Way:
    """What the sidebar asks, at the server's address."""

    def restore(asked: dict[str, Any]) -> dict[str, Any]:
        with server.as_user() as http:
            answer = http.post(f"/sessions/{kernel.id}/restore", json=asked)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    return restore


def by_mcp(server: Server, kernel: Kernel) -> Way:
    """What an agent does."""
    book = server.notebooks / kernel.path

    def restore(asked: dict[str, Any]) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            async with agent() as tool:
                return await tool("restore", notebook=str(book), **asked)

        return asyncio.run(ask())

    return restore


def did(told: dict[str, Any]) -> dict[str, Any]:
    """What a restore did, without what is another one's each time."""
    keys = ("variables", "files", "environ", "packages", "process", "warnings", "threads")
    return {"number": told["checkpoint"]["number"], **{key: told[key] for key in keys}}


def test_all_three_do_the_same(
    server: Server,
    install: Callable[..., str],
    docker: Any,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_TIMETRAVEL_STORE"):
        monkeypatch.setenv(name, server.env[name])
    kernel = server.start("a.ipynb", install(network="none"))
    own = container(docker, place).id
    kernel.run(
        "import os, itertools; it = itertools.count(); x = 1; open('f', 'w').write('1')\n"
        "open(os.path.expanduser('~/h'), 'w').write('h1')"
    )
    first = kernel.run(STATE)
    assert first.startswith("1 1 h1 0 ")
    kernel.run("x = 2; y = [0]; open('f', 'w').write('2'); open('g', 'w').close()")
    kernel.run("open(os.path.expanduser('~/h'), 'w').write('h2')")
    results = []
    for way in (by_command, by_http, by_mcp):
        restore = way(server, kernel)
        back = restore({"checkpoint": 1})
        assert kernel.run(STATE) == first
        restore({"undo": True})
        assert kernel.run("print(x, y, open('f').read(), os.path.exists('g'))") == "2 [0] 2 True"
        results.append(did(back))
        restore({"checkpoint": 4})
    assert results[0] == results[1] == results[2]
    assert results[0]["process"] == "fork"
    assert [one["path"] for one in results[0]["files"]] == ["f", "g"]
    assert container(docker, place).id == own
