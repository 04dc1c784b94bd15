"""Redaction and the disk: the power goes, or there is no room, at any operation of it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from plain_finder import found_in
from power_cut import Disk, put_on_disk, read_notes
from store_redactor import SECRET, make, redact
from test_power import CUTS, FULLS, base, on_disk, read_all, shim

__all__ = ["base", "shim"]  # fixtures


def run(shim: Path, where: Path, what: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The redactor, with the disk of ``disk.c`` below it."""
    return on_disk(shim, where, "store_redactor.py", what, **env)


def is_clean(where: Path) -> bool:
    """Whether nothing of the store tells the secret."""
    return found_in(where / "store", SECRET.encode()) == []


def test_a_power_cut_anywhere(shim, base, tmp_path, capsys):
    """Each checkpoint is as it was or as it will be, and doing it again finishes it."""
    first, log = base / "first", tmp_path / "notes"
    first.mkdir()
    assert run(shim, first, "make", DISK_LOG=str(log)).returncode == 0
    assert is_clean(first)
    ids = set(read_all(first))
    assert len(ids) == 3
    notes = read_notes(log, first)
    begins = next(n for n, note in enumerate(notes) if note.a == "made") + 1
    luck = random.Random(f"redact {CUTS}")
    moments = sorted(luck.choices(range(begins, len(notes)), k=max(20, CUTS // 4)))
    disk, done, outcomes = Disk(), 0, Counter()
    for moment in [*moments, len(notes)]:
        for note in notes[done:moment]:
            disk.do(note)
        done = moment
        where = base / "after"
        put_on_disk(disk.after_the_cut(luck, wild=False), where)
        (where / "n").mkdir(exist_ok=True)
        (where / "n" / "n.ipynb").write_text("{}")
        assert set(read_all(where)) == ids, moment
        outcomes["redacted" if is_clean(where) else "not yet"] += 1
        move(where, first)
        assert redact(first) == 0, capsys.readouterr().out
        assert found_in(first / "store", SECRET.encode()) == [], moment
        assert set(read_all(first)) == ids
    print(f"{len(moments) + 1} cuts in {len(notes) - begins} operations, {outcomes}")
    assert len(outcomes) == 2


def move(source: Path, target: Path) -> None:
    """The store knows its notebook by the path."""
    shutil.rmtree(target)
    source.rename(target)


def test_a_disk_that_is_full_from_any_operation_on(shim, base, tmp_path):
    first, kept, count = base / "first", base / "kept", tmp_path / "count"
    first.mkdir()
    make(first)
    shutil.copytree(first, kept)
    assert run(shim, first, "redact", DISK_COUNT=str(count)).returncode == 0
    total = int(count.read_text())
    ids = set(read_all(first))
    outcomes: Counter[str] = Counter()
    for n in sorted(random.Random(1).sample(range(1, total + 1), min(FULLS, total))):
        shutil.rmtree(first)
        shutil.copytree(kept, first)
        done = run(shim, first, "redact", DISK_FULL=str(n))
        outcomes["done" if done.returncode == 0 else "told"] += 1
        assert done.returncode == 0 or "not done" in done.stdout or done.stderr, (n, done)
        assert set(read_all(first)) == ids, n
        assert run(shim, first, "redact").returncode == 0
        assert is_clean(first), n
    print(f"{total} operations, {outcomes}")


@pytest.mark.parametrize("text", ["secret that is nowhere", "k" * 50])
def test_what_is_not_there_and_what_is_everywhere(base, capsys, text):
    from jupyter_timetravel import cli

    session = make(base)
    (base / "text").write_text(text)
    os.environ["JUPYTER_TIMETRAVEL_KEYS"] = str(base / "keys")
    words = ["redact", str(session.notebook), "--text-from", str(base / "text"), "--yes"]
    assert cli.main([*words, "--store", str(base / "store")]) == 0
    told = capsys.readouterr().out
    assert ("found in no checkpoint" in told) == ("nowhere" in text)
    assert ("file keep" in told) == ("k" in text[:1])
    assert len(read_all(base)) == 3
