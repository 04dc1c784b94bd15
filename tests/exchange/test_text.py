"""Case store-11: comments and names with any content, on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import unicodedata
from datetime import datetime, timezone
from pathlib import Path

import pytest

from kernel_runtime.store.database import open_store
from kernel_runtime.timeline.model import Coordinate
from tests.conftest import ROOT
from tests.exchange.conftest import MAIN

COMMENTS = [
    "", "  ", "plain", "it's \"quoted\"; DROP TABLE x;--", "two\nlines",
    "\x1b]0;owned\x07\x1b[2J", "<img src=x onerror=alert(1)>", "{x} $HOME `id`",
    "日本語 👩‍👩‍👧 e\u0301", "\u202eevil", "--force", "# not a comment", "\x9b31m\x85\u2028",
    "x" * 1_000_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a checkpoint for each, of a notebook whose name is odd as well."""
    directory = tmp_path_factory.mktemp("text") / "store"
    with contextlib.closing(open_store(directory)) as store:
        timeline = store.load_timeline("/nowhere/\x1b[31m\n.ipynb", "k\x1b[2J", epoch="0")
        made = [
            timeline.add(
                created_at=datetime.now(timezone.utc),
                reason="manual",
                coordinate=Coordinate("0"),
                comment=comment,
                code=comment,
            )
            for comment in COMMENTS
        ]
        store.save(timeline.state, made)
    return directory


def run(store: Path, *words: str, **env: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words, "--store", str(store)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout


def notebook(store: Path) -> str:
    (row,) = json.loads(run(store, "sessions", "--json", LC_ALL="C.UTF-8"))["sessions"]
    return str(row["id"])


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_lists(store: Path, locale: str) -> None:
    id = notebook(store)
    for words in (["list", id], ["sessions"], *(["show", id, str(n)] for n in (6, 14))):
        shown = run(store, *words, LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        text = shown.decode("utf-8" if locale == "C.UTF-8" else "ascii")
        bad = [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Zl", "Zp")]
        assert not bad, bad
        assert "\u202e" not in text
    lines = run(store, "list", id, LC_ALL=locale).splitlines()
    assert len(lines) == 1 + len(COMMENTS)


def test_json_keeps_all_of_it(store: Path) -> None:
    listing = json.loads(run(store, "list", notebook(store), "--json", LC_ALL="C"))
    assert [one["comment"] for one in listing["checkpoints"]] == COMMENTS
