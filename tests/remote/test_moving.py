"""Push and pull: the same comes out, only what is missing travels, nothing of it is run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.exchange.conftest import write_notebook
from tests.exchange.test_exchange import comparable
from tests.exchange.world import World
from tests.remote.conftest import Command, Remote, sessions


def test_the_same_comes_out(
    world: World, remote: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", remote.url, world.notebook, **remote.env)
    path = other / "Q" / "b.ipynb"
    write_notebook(path, "mine")
    assert "pulled" in mine("pull", remote.url, "--as", path, **remote.env)
    assert comparable(mine("list", path, "--json")) == comparable(
        first("list", world.notebook, "--json")
    )
    assert "restored" in mine("restore", path, "one")
    Q = path.parent
    assert (Q / "f").read_text() == "one"
    assert os.readlink(Q / "data") == "/mnt/data"
    assert os.stat(Q / "f").st_ino == os.stat(Q / "g").st_ino
    assert os.stat(Q / "f").st_mode & 0o7777 == 0o755, "set-user-id bits are dropped"
    assert (world.notebook.parent / "f").read_text() == "two", "nothing of P was touched"
    mine("check")
    assert not list((other / "store" / "tmp").iterdir())
    assert not (world.base / "probe").exists(), "nothing of it was loaded"


def test_only_what_is_missing_travels(
    world: World, remote: Remote, first: Command, mine: Command
) -> None:
    plain = ("--no-environment",)  # layers are directories: a pull makes them anew
    told = first("push", remote.url, world.notebook, "one", *plain, **remote.env)
    assert "1 checkpoint" in told
    before = set(remote.names())
    told = first("push", remote.url, *plain, **remote.env)
    sent = re.search(r"(\d+) objects? sent", told)
    added = set(remote.names("objects")) - before
    assert sent and int(sent[1]) == len(added), "what was there was not sent again"
    everything = set(remote.names())
    assert "all there already" in first("push", remote.url, *plain, **remote.env)
    assert set(remote.names()) == everything, "nothing is published twice"

    mine("pull", remote.url, **remote.env)
    told = mine("pull", remote.url, **remote.env)
    assert re.search(r"\(0 objects fetched", told), told
    assert len(sessions(mine)) == 2


def test_what_is_there_is_listed(world: World, remote: Remote, first: Command) -> None:
    first("push", remote.url, **remote.env)
    assert "a.ipynb" in first("remote", "list", remote.url, **remote.env)
    (found,) = json.loads(first("remote", "list", remote.url, "--json", **remote.env))["timelines"]
    (known,) = sessions(first)
    assert (found["id"], found["is_yours"], found["sealed"]) == (known["id"], True, None)
    assert found["checkpoints"] == known["checkpoints"]


def test_that_secrets_may_travel_is_said_before_anything_is_sent(
    world: World, directory: Remote, first: Command, tmp_path: Path
) -> None:
    top = tmp_path / "remote dir"
    top.chmod(0o500)
    try:
        told = first("push", directory.url, world.notebook, status=1)
    finally:
        top.chmod(0o700)
    said = "What is sent is not sealed"
    assert told.startswith(said) and "jupyter timetravel push: " in told, told
    assert directory.names() == [], "and it failed before"
