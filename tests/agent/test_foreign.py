"""Somebody else's timeline over MCP: looked at, never loaded; no tool gives trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_world import agent, make_book

from tests.exchange.conftest import end
from tests.kernel.durable_world import durable

Start = Callable[..., Any]


async def test_an_agent_cannot_load_what_no_person_has_trusted(
    on: Start, tt: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, file = tmp_path / "ran", tmp_path / "t.ttl"
    theirs, mine = make_book(tmp_path / "theirs/n.ipynb"), make_book(tmp_path / "mine/n.ipynb")
    with monkeypatch.context() as patch:
        patch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "their-keys"))
        kernel = on(theirs, "--Supervisor.images=False")
        kernel.run(
            "class Probe:\n"
            f"    def __reduce__(self): return open, ({str(probe)!r}, 'w')\n"
            "x = Probe(); y = 1; open('f', 'w').write('theirs')"
        )
        kernel.run("%checkpoint made")
        assert durable(kernel, 2)["state"] == "ready"
        end(kernel)
        tt("export", theirs, "-o", file)
    tt("import", file, "--as", mine)
    rows = tt("sessions", "--json")["sessions"]
    (row,) = [row for row in rows if row["imported"] == "not trusted"]
    id = row["id"][:12]
    async with agent() as ask:
        tools = {tool.name for tool in (await ask.client.list_tools()).tools}
        assert not any("trust" in name for name in tools)
        shown = await ask("show_checkpoint", notebook=id, checkpoint="made")
        assert shown["variables"]["y"]["value"] == "1"
        await ask("list_checkpoints", notebook=id)
        await ask("diff", notebook=id, a=1, b="made")
        for words in ({}, {"only": "files"}, {"variables": ["y"]}):
            told = await ask.refused("restore", notebook=id, checkpoint="made", **words)
            # single variables need a kernel, which a timeline without one's own notebook has not
            assert told["ename"] == ("NotRunning" if "variables" in words else "NotTrusted"), told
    assert not probe.exists() and not (mine.parent / "f").exists()
