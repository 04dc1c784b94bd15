"""What can go wrong with a remote: nothing is half there, and what is said helps."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.exchange.conftest import MAIN
from tests.exchange.test_exchange import comparable
from tests.exchange.world import World, contents_of
from tests.remote.conftest import BUCKET, Command, Endpoint, Remote, sessions
from tests.waiting import PATIENCE

KILLS = int(os.environ.get("TT_KILLS", "6"))
FLIPS = int(os.environ.get("TT_FLIPS", "6"))


def started(
    *words: str | Path,
    store: Path,
    world: World,
    remote: Remote,
    stderr: int = subprocess.STDOUT,
) -> subprocess.Popen[bytes]:
    """The command line as a child that goes on by itself."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, words)],
        env={
            **os.environ,
            **remote.env,
            "JUPYTER_TIMETRAVEL_STORE": str(store),
            "JUPYTER_TIMETRAVEL_KEYS": world.keys,
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def kill_when(child: subprocess.Popen[bytes], folder: Path, files: int) -> bool:
    """Kill it once a folder has so many files; whether it was still at work then."""
    while child.poll() is None:
        found = sum(len(names) for _, _, names in os.walk(folder))
        if found >= files:
            child.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    child.communicate(timeout=60)
    return child.returncode == -signal.SIGKILL


def moments(most: int) -> list[int]:
    """Numbers of files from none to all, some of them."""
    return sorted({round(most * at / max(1, KILLS - 1)) for at in range(KILLS)})


@pytest.mark.slow
def test_a_push_is_killed(
    world: World, tmp_path: Path, directory: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", directory.url)
    most = len(directory.names())
    killed = []
    for files in moments(most):
        top = tmp_path / f"r{files}"
        top.mkdir()
        child = started("push", top.as_uri(), store=world.store, world=world, remote=directory)
        killed.append(kill_when(child, top, files))
        there = [path for path in (top / "refs").glob("*/*") if "#" not in path.name]
        if there:  # who looks sees nothing, or all of it
            assert "pulled 6" in mine("pull", top.as_uri(), store=other / f"seen{files}")
        else:
            mine("pull", top.as_uri(), store=other / f"seen{files}", status=1)
        first("push", top.as_uri())
        assert "pulled 6" in mine("pull", top.as_uri(), store=other / f"store{files}")
        mine("check", store=other / f"store{files}")
    assert killed[0]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_pull_is_killed(
    world: World, directory: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", directory.url)
    whole = other / "whole"
    mine("pull", directory.url, store=whole)
    most = sum(len(names) for _, _, names in os.walk(whole))
    killed = []
    for files in moments(most):
        store = other / f"store{files}"
        store.mkdir(mode=0o700)
        child = started("pull", directory.url, store=store, world=world, remote=directory)
        killed.append(kill_when(child, store, files))
        known = sessions(mine, store)
        assert killed[-1] or len(known) == 1
        for session in known:  # all of it, or nothing
            assert session["checkpoints"] == 6
            assert len(comparable(mine("list", session["id"], "--json", store=store))) == 6
        mine("pull", directory.url, store=store)
        mine("check", store=store)
        time.sleep(1.1)  # prune leaves alone what may be about to be locked
        mine("prune", store=store)
        # a blob that was being written then goes a day later, as in every store
        assert not list((store / "tmp").glob("import-*")), "what was cut short is waste, and goes"
    assert killed[0]


def test_flipped_bytes(
    world: World, remote: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", remote.url, **remote.env)
    objects = remote.names("objects")
    for number, name in enumerate([*random.sample(objects, min(FLIPS, len(objects))), "refs"]):
        (name,) = remote.names("refs") if name == "refs" else [name]
        before = remote.read(name)
        whole = bytearray(before)
        # a ref with another key's id is that key's, and not trusted: see test_foreign.py
        first_byte = 36 if name.startswith("refs/") else 0
        whole[random.randrange(first_byte, len(whole))] ^= 1 << random.randrange(8)
        remote.write(name, bytes(whole))
        store = other / f"store{number}"
        child = started("pull", remote.url, store=store, world=world, remote=remote)
        told = child.communicate(timeout=PATIENCE)[0].decode()
        if child.returncode == 0:  # some bits of a compressed frame mean nothing: test_layout.py
            mine("check", store=store)
            remote.write(name, before)
            continue
        assert "Nothing" in told or "as they were" in told, told
        assert sessions(mine, store) == []
        first("push", remote.url, **remote.env)
        told = mine("pull", remote.url, store=store, **remote.env)
        assert "pulled 6" in told, "a push heals it"


def test_an_object_is_missing(
    world: World, remote: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", remote.url, **remote.env)
    mine("pull", remote.url, "--check", **remote.env)
    lost = f"objects/{world.namespace[:2]}/{world.namespace}"
    remote.remove(lost)
    store = other / "store"
    told = mine("pull", remote.url, status=1, **remote.env)
    assert "variables" in told and "not there" in told and "--partial" in told
    assert sessions(mine) == []
    told = mine("pull", remote.url, "--partial", **remote.env)
    assert "left out" in told and "variables" in told
    (session,) = sessions(mine)
    (row,) = [
        one for one in comparable(mine("list", session["id"], "--json")) if one["label"] == "two"
    ]
    states = {c["kind"]: c["state"] for c in row["captures"]}
    assert states == {"namespace": "failed", "filesystem": "ready"}
    mine("check")
    first("push", remote.url, **remote.env)
    assert lost in remote.names(), "a push brings it back"
    assert "left out" not in mine("pull", remote.url, **remote.env)
    assert contents_of(store)


def test_two_push_at_once(world: World, remote: Remote, first: Command, mine: Command) -> None:
    children = [
        started(
            "push", remote.url, world.notebook, label, store=world.store, world=world, remote=remote
        )
        for label in ("one", "two", "one", "two")
    ]
    for child in children:
        out, _ = child.communicate(timeout=100)
        assert child.returncode == 0, out
    assert "pulled 2" in mine("pull", remote.url, **remote.env)
    first("push", remote.url, **remote.env)
    assert len(remote.names("refs")) == 1, "what was merged is one"


def test_nobody_there(first: Command, other: Path, endpoint: Endpoint, tmp_path: Path) -> None:
    told = first("push", "s3://no-such-bucket/x", status=1, **endpoint.env)
    assert "NoSuchBucket" in told and "Make the bucket first" in told
    told = first("pull", "s3://no-such-bucket/x", status=1, **endpoint.env)
    assert "NoSuchBucket" in told
    gone = {**endpoint.env, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    told = first("push", f"s3://{BUCKET}/x", status=1, **gone)
    assert "See that the network works" in told
    told = first("pull", (tmp_path / "nothing").as_uri(), status=1)
    assert "there is no directory" in told
    told = first("pull", tmp_path.as_uri(), status=1)
    assert "has no timeline" in told
    told = first("push", "ftp://x/y", status=1)
    assert "Give s3://" in told
    told = first("push", str(tmp_path), status=1)
    assert "Give s3://" in told
    for word in ("secret", "someone"):
        assert word not in told


def test_wrong_credentials(first: Command, endpoint: Endpoint) -> None:
    endpoint.check_access(after="0")
    try:
        for words in (("push",), ("pull",), ("remote", "list")):
            told = first(*words, f"s3://{BUCKET}/x", status=1, **endpoint.env)
            assert "InvalidAccessKeyId" in told and "AWS_ACCESS_KEY_ID" in told
    finally:
        endpoint.check_access(after="inf")


def test_the_library_is_missing(first: Command, tmp_path: Path) -> None:
    (tmp_path / "obstore.py").write_text("raise ImportError('not installed')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    told = first("push", tmp_path.as_uri(), status=1, PYTHONPATH=path)
    assert "jupyter_timetravel[remote]" in told


def test_what_travelled_is_not_sent_again(
    world: World, remote: Remote, first: Command, mine: Command
) -> None:
    """As after a push that was cut short: some objects are there, and no ref names them."""
    first("push", remote.url, **remote.env)
    objects = remote.names("objects")
    gone = objects[::2]
    for name in [*gone, *remote.names("refs")]:
        remote.remove(name)
    told = first("push", remote.url, **remote.env)
    sent = re.search(r"([\d,]+) objects? sent", told)
    # the list of this push is a new one: it says when it was made
    assert sent and len(gone) <= int(sent[1].replace(",", "")) <= len(gone) + 1, told
    assert "pulled 6" in mine("pull", remote.url, **remote.env)
