"""What the tests of this directory share."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from mcp import Client, StdioServerParameters

MAIN = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"


class Agent:
    """What an agent sees: tools by name."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must do it; its structured result."""
        done = await self.client.call_tool(tool, arguments)
        assert not done.is_error, done.content
        assert done.structured_content["status"] == "ok"
        assert done.structured_content["command"] == tool
        return dict(done.structured_content)

    async def said(self, tool: str, **arguments: Any) -> str:
        """What a model reads."""
        done = await self.client.call_tool(tool, arguments)
        assert not done.is_error, done.content
        return str(done.content[0].text)

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must refuse; the error."""
        done = await self.client.call_tool(tool, arguments)
        assert done.is_error, done.structured_content
        return dict(done.structured_content)

    async def run(self, notebook: Path, code: str, **more: Any) -> dict[str, Any]:
        """A cell that must succeed."""
        told = await self("run_cell", notebook=str(notebook), code=code, **more)
        assert told["outcome"] == "ok", told
        return told


@asynccontextmanager
async def agent(*arguments: str) -> AsyncIterator[Agent]:
    """An MCP server of its own, as a client of the SDK starts it, in the present environment."""
    server = StdioServerParameters(
        command=sys.executable, args=["-c", MAIN, "mcp", *arguments], env=dict(os.environ)
    )
    async with Client(server) as client:
        yield Agent(client)


def server_of_agent() -> psutil.Process:
    """The server that this process has started for an agent, whatever else it has started."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends, or is not waited for yet
            if "mcp" in one.cmdline()[-1:]:
                found.append(one)
    (server,) = found
    return server


def make_book(path: Path) -> Path:
    """An empty notebook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(empty))
    return path


def end(notebook: Any) -> None:
    """Shut a kernel down, its last checkpoint made."""
    notebook.head()
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel()


def on_disk(show: Callable[[], dict[str, Any]]) -> None:
    """Wait until the variables of the checkpoint that ``show`` tells of are on the disk."""
    end = time.monotonic() + 110  # written at low priority
    while time.monotonic() < end:
        captures = show()["checkpoint"]["captures"]
        if any(one["kind"] == "namespace" and one["state"] == "ready" for one in captures):
            return
        time.sleep(0.1)
    raise AssertionError(captures)


def without(found: Any, *names: str) -> Any:
    """A result without some of its keys, such as what the kernel goes on writing."""
    if isinstance(found, dict):
        return {key: without(value, *names) for key, value in found.items() if key not in names}
    return [without(one, *names) for one in found] if isinstance(found, list) else found


def ended(tt: Callable[..., Any], book: Path) -> None:
    """Wait until no kernel has the notebook any more."""
    end = time.monotonic() + 110
    while tt("list", book, "--json")["running"]:
        assert time.monotonic() < end
        time.sleep(0.1)
