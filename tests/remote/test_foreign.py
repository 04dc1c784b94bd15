"""What somebody else has pushed, and what is sealed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.exchange.conftest import write_notebook
from tests.exchange.world import World
from tests.remote.conftest import Command, Remote, sessions


def test_what_is_foreign_is_not_restored_until_it_is_trusted(
    world: World, directory: Remote, first: Command, theirs: Command, other: Path
) -> None:
    first("push", directory.url)
    path = other / "Q" / "b.ipynb"
    write_notebook(path)
    told = theirs("remote", "list", directory.url)
    assert "signed with the key" in told
    assert "restoring it needs `trust`" in theirs("pull", directory.url, "--check")
    told = theirs("pull", directory.url, "--as", path)
    assert "not signed by you" in told
    (session,) = sessions(theirs)
    assert "not yours" in theirs("restore", session["id"], "one", status=1)
    assert "not yours" in theirs("push", directory.url, session["id"], status=1)
    theirs("list", session["id"])
    theirs("show", session["id"], "two")
    theirs("trust", session["id"], "--yes")
    theirs("restore", path, "one")
    assert (path.parent / "f").read_text() == "one"
    assert not (world.base / "probe").exists(), "nothing of it was loaded"


def test_two_people_in_one_place(
    world: World, directory: Remote, first: Command, theirs: Command, other: Path
) -> None:
    first("push", directory.url)
    theirs("pull", directory.url)
    (session,) = sessions(theirs)
    theirs("trust", session["id"], "--yes")
    theirs("adopt", session["id"], _notebook(other))
    theirs("push", directory.url)
    listed = json.loads(first("remote", "list", directory.url, "--json"))["timelines"]
    assert sorted(row["is_yours"] for row in listed) == [False, True]
    told = first("pull", directory.url, status=1)
    assert "has several" in told
    for row in listed:
        assert "pulled 6" in first("pull", directory.url, row["id"], store=other / row["key"])


def _notebook(other: Path) -> Path:
    write_notebook(other / "n.ipynb")
    return other / "n.ipynb"


def test_a_ref_of_mine_with_the_id_of_another_key_is_not_mine(
    world: World, directory: Remote, first: Command, mine: Command, other: Path
) -> None:
    first("push", directory.url)
    (name,) = directory.names("refs")
    (listed,) = json.loads(first("remote", "list", directory.url, "--json"))["timelines"]
    own = listed["key"].encode()
    data = directory.read(name)
    assert data.startswith(b"timetravel ref 1 -\n" + own)
    directory.write(name, data.replace(own, b"0" * 16, 1))
    assert "not signed by you" in mine("pull", directory.url)
    (session,) = sessions(mine)
    assert "not yours" in mine("restore", session["id"], "one", status=1)


@pytest.fixture
def key(other: Path) -> Path:
    """The file that holds the key of an encrypted store."""
    path = other / "key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def test_what_is_encrypted_travels_sealed(
    world: World, remote: Remote, mine: Command, other: Path, key: Path
) -> None:
    sealed = {"JUPYTER_TIMETRAVEL_ENCRYPTION": str(key), **remote.env}
    path = _notebook(other)
    mine("import", world.file, "--as", path)
    mine("encrypt", "--key-file", key, "--rewrite", **sealed)
    told = mine("push", remote.url, path, **sealed)
    assert "not sealed" not in told
    told = mine("push", remote.url, path, "--images", status=1, **sealed)
    assert "sealed for this store alone" in told and "without --images" in told
    secrets = [b"one", b"a.ipynb", b"ttl", b"checkpoint", world.namespace.encode(), b"Path"]
    for name in remote.names():
        data = remote.read(name)
        if not name.startswith("keys/"):
            assert not any(word in data for word in secrets), name
        assert world.namespace not in name
    plain = other / "plain"
    told = mine("pull", remote.url, store=plain, status=1, **remote.env)
    assert "no key was given" in told
    assert "not shown" in mine("remote", "list", remote.url, store=plain, **remote.env)
    wrong = other / "wrong"
    wrong.write_bytes(os.urandom(32))
    wrong.chmod(0o600)
    bad = {**sealed, "JUPYTER_TIMETRAVEL_ENCRYPTION": str(wrong)}
    assert "does not open it" in mine("pull", remote.url, store=plain, status=1, **bad)
    assert not plain.exists()

    second = other / "second"
    assert "pulled 6" in mine("pull", remote.url, store=second, **sealed)
    assert (second / "encryption.json").exists(), "a new store is made an encrypted one"
    (session,) = sessions(lambda *a, **k: mine(*a, **{**sealed, **k}), second)
    write_notebook(other / "again" / "n.ipynb")
    mine("adopt", session["id"], other / "again" / "n.ipynb", store=second, **sealed)
    mine("restore", other / "again" / "n.ipynb", "one", store=second, **sealed)
    assert (other / "again" / "f").read_text() == "one"

    clear = (other / "clear").as_uri()
    mine("push", clear, store=world.store, JUPYTER_TIMETRAVEL_KEYS=world.keys)
    mine("pull", clear, store=other / "fourth", **sealed)
    assert (other / "fourth" / "encryption.json").exists(), "where a key is named, too"

    third = other / "third"
    mine("import", world.file, store=third)
    told = mine("pull", remote.url, store=third, status=1, **sealed)
    assert "not encrypted" in told, "nothing sealed is written plain"
