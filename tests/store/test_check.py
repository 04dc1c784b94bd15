"""``jupyter timetravel check`` and ``du`` on stores with one thing wrong, or nothing."""

from __future__ import annotations

import json
import os
import random
import subprocess
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from store_world import Session, leave_store

from jupyter_timetravel import cli
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.keys import Keys

FLIPS = int(os.environ.get("TT_FLIPS", "120"))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "keys"))

    def run(*words, status=0):
        capsys.readouterr()
        found = cli.main(list(words))
        out, err = capsys.readouterr()
        assert found == status, out + err
        return out or err

    return run


@pytest.fixture
def stored(tmp_path):
    return leave_store(tmp_path)


def blob_of(stored, data):
    [file] = stored.directory.glob(f"blobs/*/{digest_of(data)}")
    return file


def test_all_is_well(stored, command):
    assert "2 checkpoints read: all is well" in command("check")
    assert json.loads(command("check", "--json"))["good"]


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "unreadable"])
def test_store_08_one_damaged_blob(stored, command, harm):
    data = (stored.notebook.parent / "same.txt").read_bytes()
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    file = blob_of(stored, pieces[1])
    if harm == "flip":
        good = file.read_bytes()
        file.write_bytes(good[:50] + b"X" + good[51:])
    elif harm == "truncate":
        os.truncate(file, 10)
    elif harm == "delete":
        file.unlink()
    else:
        file.unlink()
        file.mkdir()  # as root mode 000 hinders nobody
    told = json.loads(command("check", "--json", status=1))
    [bad] = told["bad"]
    assert bad["blob"] == file.name
    assert bad["checkpoints"] == [f"#{n} of {stored.notebook}" for n in (1, 2)]
    assert file.name in command("check", status=1)
    if harm == "unreadable":
        file.rmdir()
    stored.write("again.txt", data)
    with closing(Session(stored.base)) as session:
        session.checkpoint(comment="the same content heals it")
    assert "all is well" in command("check")


def flipped(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 0x20
    file.write_bytes(data)


def test_a_flipped_byte_in_any_blob(stored, command):
    """Each file below blobs, one at a time, at three places."""
    files = [file for file in stored.directory.rglob("blobs/*/*") if file.stat().st_size]
    assert len(files) > 10
    for file in files:
        good = file.read_bytes()
        for at in {0, len(good) // 2, len(good) - 1}:
            flipped(file, at)
            told = json.loads(command("check", "--json", status=1))
            assert [bad["blob"] for bad in told["bad"]] == [file.name]
            file.write_bytes(good)
    assert "all is well" in command("check")


def told_of_checkpoints(stored):
    with closing(Session(stored.base)) as session:
        return [
            replace(c, variables=dict(c.variables))
            for c in session.store.look_at(session.timeline.id)
        ]


def test_a_flipped_byte_in_the_database(stored, command):
    """It is named, or it lies where nothing of a checkpoint is."""
    before = told_of_checkpoints(stored)
    file = stored.directory / FILE_NAME
    good = file.read_bytes()
    noticed = 0
    places = random.Random(1).sample(range(len(good)), FLIPS)
    written = [at for at in range(len(good)) if good[at]]
    for at in [0, 20, 100, *places, *random.Random(2).sample(written, min(FLIPS, len(written)))]:
        flipped(file, at)
        status = cli.main(["check"])
        noticed += status
        if status == 0:
            assert told_of_checkpoints(stored) == before, at
        file.write_bytes(good)
        for more in ("-wal", "-shm"):
            file.with_name(file.name + more).unlink(missing_ok=True)
    print(f"{2 * FLIPS} flips, {noticed} noticed, the others changed nothing")
    assert noticed > 30
    assert "all is well" in command("check")


def test_a_damaged_database_is_named_at_every_command(stored, command):
    file = stored.directory / FILE_NAME
    file.write_bytes(b"\0" * 4096 + file.read_bytes()[4096:])
    for words in (["check"], ["sessions"], ["list", str(stored.notebook)], ["du"]):
        told = command(*words, status=1)
        assert f"The database {file} is damaged" in told and "Nothing was changed" in told
    assert len(list(stored.directory.glob("blobs/*/*"))) > 5


def test_what_is_only_a_help_may_be_damaged(stored, command):
    """The index of the workspace is a cache, and what a lock holds is told and no more."""
    for file in [*stored.directory.glob("journal/*"), *stored.directory.glob("locks/*")]:
        flipped(file, 0)
    assert "all is well" in command("check")
    with closing(Session(stored.base)) as session:
        session.checkpoint(comment="three")
    assert "3 checkpoints read: all is well" in command("check")


def test_somebody_else_s_manifest_is_told_and_no_damage(stored, command, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_TIMETRAVEL_KEYS", str(tmp_path / "other keys"))
    told = command("check")
    assert told.count("not trusted: #") == 2
    assert Keys(tmp_path / "keys").id in told


# -- room -----------------------------------------------------------------------------------------


def test_store_07_the_room_of_each_notebook(tmp_path, command):
    common = os.urandom(600_000)
    for name in ("a", "b"):
        with closing(Session(tmp_path, name)) as session:
            session.write("common", common)
            session.write("own", os.urandom(300_000))
            session.checkpoint(common, os.urandom(400_000))
            session.checkpoint(common, comment="unchanged")
    (tmp_path / "b" / "b.ipynb").unlink()
    told = json.loads(command("du", "--json"))
    rows = told["sessions"]
    assert [row["exists"] for row in rows] == [True, False]
    for row in rows:
        assert 700_000 < row["unique_bytes"] < 760_000
        assert 1_200_000 < row["shared_bytes"] < 1_260_000
    assert told["unneeded_bytes"] == 0
    parts = sum(row["unique_bytes"] + row["environment_bytes"] for row in rows)
    parts += told["shared_bytes"] + told["other_bytes"]
    assert parts == told["store_bytes"]
    [taken] = subprocess.run(
        ["du", "-s", "--block-size=1", str(tmp_path / "store")], capture_output=True, check=True
    ).stdout.split()[:1]
    assert abs(told["store_bytes"] - int(taken)) < 0.05 * int(taken)
    table = command("du")
    assert "the notebook is gone" in table and str(tmp_path / "a" / "a.ipynb") in table


def test_prune_within_a_budget(tmp_path, command):
    """The oldest automatic ones go, until all fits; what was asked for stays, and that is said."""
    with closing(Session(tmp_path)) as session:
        first = session.checkpoint(os.urandom(1_000_000), comment="asked for")
        for _ in range(5):
            session.checkpoint(os.urandom(1_000_000), reason="cell")
    told = command("prune", "--budget", "4M", "--dry-run")
    assert "2 checkpoints" in told or "3 checkpoints" in told
    assert len(session_of(tmp_path)) == 6
    command("prune", "--budget", "4M")
    left = session_of(tmp_path)
    assert left[0] == (1, first) and [n for n, _ in left][-2:] == [5, 6] and len(left) in (3, 4)
    assert json.loads(command("du", "--json"))["store_bytes"] < 4_600_000
    assert "more than the budget" in command("prune", "--budget", "500k")
    assert [n for n, _ in session_of(tmp_path)] == [1, 6]
    assert "all is well" in command("check")
    for words in (["--budget", "much"], ["--keep-last", "-1"], ["--hourly", "-2"]):
        assert "Nothing was done" in command("prune", *words, status=1)


def session_of(base):
    with closing(Session(base)) as session:
        return [(c.number, c.id) for c in session.timeline]


def test_prune_keeps_one_an_hour(tmp_path, command):
    begin = datetime(2026, 5, 1, tzinfo=timezone.utc)
    with closing(Session(tmp_path)) as session:
        for minute in (0, 10, 59, 61, 119, 240):
            made_at = begin + timedelta(minutes=minute)
            session.checkpoint(b"%d" % minute, reason="cell", created_at=made_at)
    told = command("prune", str(session.notebook), "--hourly", "2", "--dry-run")
    assert "3 checkpoints" in told
    command("prune", str(session.notebook), "--hourly", "2")
    assert [n for n, _ in session_of(tmp_path)] == [3, 5, 6]
    assert "all is well" in command("check")


def test_store_05_prune_by_age_leaves_odd_times_alone(tmp_path, command):
    with closing(Session(tmp_path)) as session:
        for year in (2024, 2020, 2099, 2025):
            made_at = datetime(year, 5, 1, 12, tzinfo=timezone.utc)
            session.checkpoint(comment=f"t{year}", reason="cell", created_at=made_at)
        session.checkpoint(reason="cell")
    listed = json.loads(command("list", str(session.notebook), "--json"))["checkpoints"]
    assert [c["number"] for c in listed] == [1, 2, 3, 4, 5]
    assert [c["created_at"][:4] for c in listed[:4]] == ["2024", "2020", "2099", "2025"]
    told = command("prune", str(session.notebook), "--older-than", "30d")
    assert "2 checkpoints whose time cannot be right left alone" in told
    assert [n for n, _ in session_of(tmp_path)] == [2, 3, 5]


def test_store_05_prune_keeps_the_last_by_number_whatever_the_clock_said(tmp_path, command):
    with closing(Session(tmp_path)) as session:
        for year in (2026, 2020, 2099, 2026):
            made = datetime(year, 5, 1, 12, tzinfo=timezone.utc)
            session.checkpoint(os.urandom(1000), reason="cell", created_at=made)
    command("prune", "--keep-last", "2")
    assert [number for number, _ in session_of(tmp_path)][-2:] == [3, 4]
    assert 1 not in [number for number, _ in session_of(tmp_path)]
