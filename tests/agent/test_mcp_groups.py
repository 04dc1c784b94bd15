"""Agents that share a folder, as one: the tools for groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agent_world import agent, make_book


@pytest.fixture(autouse=True)
def environment(start_notebook: Callable[..., Any]) -> None:
    """Store, keys and runtime directory of the test: servers and their kernels inherit them."""


async def test_a_group_of_two_goes_back_and_one_alone(book: Path, tt: Callable[..., Any]) -> None:
    other = make_book(book.with_name("other.ipynb"))
    async with agent() as ask:
        for one in (book, other):
            await ask.run(one, "x = 1")
        members = [f"a={book}", f"b={other}"]
        assert (await ask("group_create", group="both", members=members))["members"] == ["a", "b"]
        made = await ask("group_checkpoint", group="both", comment="start")
        assert made["record"]["complete"]
        for one in (book, other):
            await ask.run(one, "x = 2")
        await ask("group_restore", group="both", record="start", member="b")
        assert [(await ask.run(one, "x"))["result"] for one in (book, other)] == ["2", "1"]
        shown = await ask("group_show", group="both")
        assert shown["mixed"]
        plan = await ask("group_restore", group="both", record="G1", dry_run=True)
        assert set(plan["members"]) == {"a", "b"}
        await ask("group_restore", group="both", record="G1")
        assert [(await ask.run(one, "x"))["result"] for one in (book, other)] == ["1", "1"]
        await ask("group_restore", group="both", undo=True)
        assert [(await ask.run(one, "x"))["result"] for one in (book, other)] == ["2", "1"]
        listed = await anyio.to_thread.run_sync(tt, "list", "--group", "both", "--json")
        assert len(listed["records"]) == 3
        told = await ask.refused("group_restore", group="both")
        assert told["ename"] == "BadRequest"
        told = await ask.refused("group_checkpoint", group="nobody")
        assert told["ename"] == "UnknownGroup"
