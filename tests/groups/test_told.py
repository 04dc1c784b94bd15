"""What the members' front ends are told of their group without a word in a cell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from jupyter_timetravel import Client
from jupyter_timetravel.client import Events
from tests.conftest import Notebook
from tests.groups.conftest import ran
from tests.waiting import PATIENCE


def told(events: Events) -> tuple[str, Any]:
    """The next time that the group is said to have changed."""
    for event in events:
        content: Any = event.content
        if event.name == "group_changed":
            return content["text"], content["state"]
    raise AssertionError("nobody said so")


def test_members_hear_of_their_group(
    on: Callable[..., Notebook], folder: Any, tt: Callable[..., Any]
) -> None:
    a, b = on("a"), on("b")
    ran(a, "x = 1")
    ran(b, "x = 1")
    books = [folder / "a.ipynb", folder / "b.ipynb"]
    with (
        Client.from_connection_file(b.manager.connection_file, timeout=PATIENCE) as client,
        closing(client.events(timeout=PATIENCE)) as events,
    ):
        tt("group", "create", "pair", books[0])
        tt("group", "add", "pair", books[1])
        assert told(events) == ("", {})
        made = tt("checkpoint", "--group", "pair")["record"]
        assert told(events) == ("", {"record": made})
        ran(b, "x = 2")
        tt("restore", "--group", "pair", "G1")
        assert told(events) == ("", {"record": made})
        assert b.run("print(x)").out == "1"  # and nothing else
        tt("group", "remove", "pair", "b")
        assert told(events) == ("", {})


def test_the_others_are_told_that_one_alone_went_back(
    on: Callable[..., Notebook], folder: Any, tt: Callable[..., Any]
) -> None:
    """group-01: what A's panel shows."""
    a, b = on("a"), on("b")
    ran(a, "va = 1")
    ran(b, "vb = 1")
    tt("group", "create", "pair", folder / "a.ipynb", folder / "b.ipynb")
    made = tt("checkpoint", "--group", "pair")["record"]
    ran(a, "va = 2")
    ran(b, "vb = 2")
    with (
        Client.from_connection_file(a.manager.connection_file, timeout=PATIENCE) as client,
        closing(client.events(timeout=PATIENCE)) as events,
    ):
        tt("restore", "--group", "pair", "G1", "--member", "b")
        text, state = told(events)
    assert text.startswith("b was restored to G1 (group pair); the group is mixed: a at ")
    assert text.endswith(", b at G1."), text
    assert state["member"] == "b" and state["title"] == "G1" and state["mixed"], state
    shown = tt("group", "show", "pair")
    assert shown["mixed"]
    at = {one["name"]: one["at"] for one in shown["members"]}
    assert at["b"] == made["title"] and at["a"] != made["title"]
    assert (a.run("print(va)").text("stdout").splitlines()[-1], b.run("print(vb)").out) == (
        "2",
        "1",
    )
