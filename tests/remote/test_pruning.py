"""Deleting in a remote: only what nobody needs, also while others push."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from tests.exchange.conftest import MAIN
from tests.exchange.world import World
from tests.remote.conftest import Command, Remote, sessions


def test_what_nothing_needs_goes_and_nothing_else(
    world: World, remote: Remote, first: Command, mine: Command
) -> None:
    first("push", remote.url, world.notebook, **remote.env)
    before = remote.names()
    waste = "objects/ab/" + "ab" * 32
    remote.write(waste, b"\0nothing")
    told = first("remote", "prune", remote.url, "--older-than", "0m", "--dry-run", **remote.env)
    assert "1 object" in told and "would be" in told
    told = first("remote", "prune", remote.url, "--yes", **remote.env)
    assert "0 objects" in told and "younger" in told
    assert remote.names() == sorted([*before, waste])
    refused = first("remote", "prune", remote.url, status=4, **remote.env)
    assert "--yes" in refused
    first("remote", "prune", remote.url, "--older-than", "0m", "--yes", **remote.env)
    assert remote.names() == before
    mine("pull", remote.url, **remote.env)
    assert len(sessions(mine)) == 1
    mine("check")


def test_what_is_no_object_of_ours_stays(world: World, remote: Remote, first: Command) -> None:
    """A wrong URL may be that of a git repository, which has objects too."""
    first("push", remote.url, world.notebook, **remote.env)
    before = remote.names()
    others = ["objects/ab/" + "c" * 38, "objects/ab/" + "0" * 64, "objects/pack/pack-1.pack"]
    for name in others:
        remote.write(name, b"mine")
    told = first("remote", "prune", remote.url, "--older-than", "0m", "--yes", **remote.env)
    assert "0 objects" in told
    assert remote.names() == sorted([*before, *others])
    words = ("remote", "prune", remote.url, "--older-than", "999999w", "--dry-run")
    assert "0 objects" in first(*words, **remote.env)


def test_a_timeline_is_deleted_and_its_content_with_it(
    world: World, remote: Remote, first: Command
) -> None:
    first("push", remote.url, world.notebook, **remote.env)
    held = remote.names()
    told = first("remote", "delete", remote.url, "a.ipynb", "--dry-run", **remote.env)
    assert "checkpoints" in told and "deleted" not in told
    assert remote.names() == held
    gone = first("remote", "delete", remote.url, "none.ipynb", "--yes", status=1, **remote.env)
    assert "Nothing was done" in gone
    first("remote", "delete", remote.url, "a.ipynb", "--yes", **remote.env)
    assert "nothing was pushed" in first("remote", "list", remote.url, **remote.env)
    first("remote", "prune", remote.url, "--older-than", "0m", "--yes", **remote.env)
    assert remote.names() == []


def test_what_cannot_be_read_is_no_waste(world: World, remote: Remote, first: Command) -> None:
    first("push", remote.url, world.notebook, **remote.env)
    (ref,) = remote.names("refs")
    whole = remote.read(ref)
    remote.write(ref, whole[:-9])
    words = ("remote", "prune", remote.url, "--older-than", "0m", "--yes")
    held = remote.names()
    assert "cannot be read" in first(*words, status=1, **remote.env)
    assert remote.names() == held
    remote.write(ref, whole)
    (name,) = [n for n in remote.names("objects") if _is_list(remote, n)]
    data = remote.read(name)
    remote.remove(name)
    assert "not there any more" in first(*words, status=1, **remote.env)
    remote.write(name, data)
    first(*words, **remote.env)
    assert remote.names() == held


def _is_list(remote: Remote, name: str) -> bool:
    import zstandard

    data = remote.read(name)
    text = data[1:] if data[:1] == b"\0" else zstandard.ZstdDecompressor().decompress(data[1:])
    return text.startswith(b"{") and b'"next_number"' in text


def test_pushes_and_deletions_at_once(
    world: World, remote: Remote, first: Command, mine: Command, other: Path
) -> None:
    """Whoever is told that a push is done can pull it, whatever was deleted beside it."""
    ended = threading.Event()
    outcomes: list[int] = []

    def delete_again_and_again() -> None:
        while not ended.is_set():
            done = subprocess.run(
                [sys.executable, "-c", MAIN, "remote", "prune", remote.url, "--older-than", "0m",
                 "--yes", "--store", str(world.store)],
                env={**_env(world), **remote.env}, capture_output=True, timeout=120,
            )  # fmt: skip
            outcomes.append(done.returncode)
            assert b"Traceback" not in done.stderr, done.stderr

    first("push", remote.url, world.notebook, "one", **remote.env)
    threads = [threading.Thread(target=delete_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(4):
            first("push", remote.url, world.notebook, **remote.env)
            told = mine("pull", remote.url, "--json", store=other / f"store{turn}", **remote.env)
            assert json.loads(told)["status"] == "ok"
            mine("check", store=other / f"store{turn}")
            if turn < 3:  # all of it has to be sent once more
                first("remote", "delete", remote.url, "a.ipynb", "--yes", **remote.env)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert 0 in outcomes and not remote.names("prunes")


def _env(world: World) -> dict[str, str]:
    import os

    from tests.conftest import ROOT

    return {
        **os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_TIMETRAVEL_KEYS": world.keys,
        "JUPYTER_TIMETRAVEL_STORE": str(world.store),
    }  # fmt: skip
