"""The commands by which a coordinator holds one kernel: docs/protocol.md."""

from __future__ import annotations

from typing import Any

from tests.conftest import Notebook


def test_cells_wait_while_it_is_held(notebook: Notebook) -> None:
    notebook.run("x = 1")
    notebook.head()
    assert notebook.command("hold", lease="mine", seconds=60, wait=30) == {
        "held": True,
        "why": None,
    }
    cell = notebook.send("x = 2")
    assert notebook.command("hold", lease="other", seconds=60) == {"held": False, "why": "held"}
    assert notebook.command("hold", lease="mine", seconds=60, renew=True)["held"]
    made = notebook.command("checkpoint")["checkpoint"]
    assert not notebook.command("status")["busy"]
    assert notebook.command("release", lease="other") == {"released": False}
    assert notebook.command("release", lease="mine") == {"released": True}
    assert notebook.wait(cell).status == "ok"
    notebook.command("restore", checkpoint=made["id"])
    assert notebook.run("print(x)").out == "1"


def test_a_lease_ends_by_itself(notebook: Notebook) -> None:
    assert notebook.command("hold", lease="mine", seconds=0.2, wait=30)["held"]
    assert notebook.run("print(42)").out == "42"
    assert not notebook.command("hold", lease="mine", seconds=60, renew=True)["held"]
    assert notebook.command("release", lease="mine") == {"released": False}
    told = notebook.refused("restore", checkpoint=0, lease="mine")
    assert told["ename"] == "RestoreRefused"
    assert "had ended" in told["evalue"]


def test_only_a_session_at_rest_is_held(notebook: Notebook) -> None:
    cell = notebook.send("input('?')", allow_stdin=True)
    notebook.client.get_stdin_msg(timeout=60)
    assert notebook.command("hold", lease="mine", seconds=60) == {"held": False, "why": "busy"}
    notebook.client.input("go on")
    assert notebook.wait(cell).status == "ok"
    # it comes to rest, and is only asked
    told = notebook.command("hold", lease="mine", seconds=0, wait=60)
    assert told == {"held": False, "why": None}
    assert notebook.run("print(42)").out == "42"


def test_whoever_else_would_go_back_waits_for_the_end_of_the_lease(notebook: Notebook) -> None:
    notebook.run("x = 1")
    made = notebook.head()["id"]
    notebook.run("x = 2")
    assert notebook.command("hold", lease="mine", seconds=60, wait=30)["held"]
    content = {"version": 1, "command": "restore", "args": {"checkpoint": made}}
    asked = notebook.client.session.msg("timetravel_request", content)
    notebook.client.control_channel.send(asked)
    assert notebook.command("release", lease="mine")["released"]
    # the cell came after it, and waits for it
    assert notebook.run("print(x)").out == "1"


def test_what_is_no_lease(notebook: Notebook) -> None:
    wrong: list[dict[str, Any]] = [
        {"lease": "", "seconds": 1},
        {"lease": "x", "seconds": 61},
        {"lease": "x", "seconds": -1},
        {"lease": "x", "seconds": 1, "wait": 61},
        {"lease": "x", "seconds": "1"},
        {"lease": "x", "seconds": True},
        {"seconds": 1},
    ]
    for args in wrong:
        assert notebook.refused("hold", **args)["ename"] == "BadRequest", args
    assert notebook.run("print(42)").out == "42"
