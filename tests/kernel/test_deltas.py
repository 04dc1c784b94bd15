"""What a cell changes as a whole is stored as what changed, through real kernels."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.exchange.conftest import call, end
from tests.kernel.durable_world import durable, kill

sys.path.insert(0, str(ROOT / "tests" / "store"))
from plain_finder import found_in

ARRAY_MB = 24
MAKE = f"import numpy as np; a = np.random.default_rng(0).random({ARRAY_MB} * 125_000); n = 0"
SUM = "print(n, a.sum().hex(), a[::9999].sum().hex())"
SECRET = b"TTSECRET-" + b"4f9a1c" * 4


def blocks(store: Path) -> float:
    """Megabytes on the disk of what is stored of variables."""
    files = (store / "namespaces").rglob("*")
    return sum(512 * os.lstat(file).st_blocks for file in files) / 1e6


def test_versions_of_an_array_take_little_and_come_back(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    first = start_notebook("--Supervisor.images=False", **document)
    first.run(MAKE)
    told = []
    for code in ("pass", "a += 1", "a[::50] = 0", "a *= 1.1", "a[:] = a[::-1].copy()"):
        first.run(f"{code}; n += 1")
        shown, before = first.run(SUM).out, blocks(store)
        number = int(first.run("%checkpoint").out.split()[1].strip("#"))
        assert durable(first, number)["state"] == "ready"
        told.append((number, shown, blocks(store) - before))
    grown = [int(one[2]) for one in told]
    # the last one has nothing in common with what was there
    assert grown[0] >= ARRAY_MB - 1 and grown[4] >= ARRAY_MB - 1, grown
    assert max(grown[1:4]) < ARRAY_MB / 10, grown
    kill(first)
    assert "all is well" in call("check", store=store)

    second = start_notebook("--Supervisor.images=False", **document)
    for number, expected, _ in reversed(told):
        second.run(f"%restore {number}")
        assert second.run(SUM).out == expected
    # a session that was resumed goes on from what it was resumed from
    before = blocks(store)
    second.run("a -= 3")
    number = int(second.run("%checkpoint").out.split()[1].strip("#"))
    assert durable(second, number)["state"] == "ready"
    assert blocks(store) - before < ARRAY_MB / 10
    expected = second.run(SUM).out
    end(second)
    verified = call("verify", document["cwd"] / "n.ipynb", str(number), "--json", store=store)
    assert json.loads(verified)

    # deltas stay in the store: a file holds whole pieces, and so does another store
    moved = tmp_path / "moved.tar"
    call("export", document["cwd"] / "n.ipynb", "--output", moved, store=store)
    call("prune", document["cwd"] / "n.ipynb", "--keep-last", "1", store=store)
    assert "all is well" in call("check", store=store)
    third = start_notebook("--Supervisor.images=False", **document)
    third.run("%timetravel resume")
    assert third.run(SUM).out == expected


def test_what_is_redacted_is_not_kept_for_a_delta_either(
    start_notebook: Callable[..., Any], document: dict[str, Any], tmp_path: Path
) -> None:
    store, secret = tmp_path / "store", tmp_path / "secret"
    secret.write_bytes(SECRET)
    notebook = start_notebook("--Supervisor.images=False", **document)
    notebook.run(
        "import numpy as np; a = np.random.default_rng(0).integers(0, 256, 3_000_000, 'u1')\n"
        "where = slice(1_000_000, 1_000_033)\n"
        "a[where] = np.frombuffer(b'TTSECRET-' + b'4f9a1c' * 4, 'u1')"
    )
    assert durable(notebook, 1)["state"] == "ready"
    notebook.run("a[where] = 0")
    assert durable(notebook, 2)["state"] == "ready"
    expected = notebook.run("print(a.sum(), a.size)").out
    end(notebook)
    assert len(found_in(store / "namespaces", SECRET)) == 1
    assert blocks(store) < 5  # the second one is a delta to the first
    words = ("--text-from", secret, "--yes")
    call("redact", document["cwd"] / "n.ipynb", *words, store=store)
    assert found_in(store, SECRET) == []
    assert "all is well" in call("check", store=store)
    second = start_notebook("--Supervisor.images=False", **document)
    second.run("%restore 2")
    assert second.run("print(a.sum(), a.size)").out == expected


@pytest.mark.parametrize("code", ["del a; b = 1", "a = 'text'", "a = a[:-1000].copy()"])
def test_what_became_of_a_variable(
    code: str, start_notebook: Callable[..., Any], document: dict[str, Any]
) -> None:
    """Gone, another thing, of another size: whatever it was before is no hindrance."""
    first = start_notebook(
        "--Supervisor.images=False", "--Supervisor.durability_interval=0", **document
    )
    first.run(MAKE)
    assert durable(first, 1)["state"] == "ready"
    first.run(code)
    assert durable(first, 2)["state"] == "ready"
    kill(first)
    second = start_notebook("--Supervisor.images=False", **document)
    second.run("%restore 2")
    shown = "print('a' in dir() and (type(a).__name__, len(a)))"
    expected = {"del": "False", "a =": "('str', 4)"}.get(code[:3])
    if code.startswith("a = a["):
        expected = f"('ndarray', {ARRAY_MB * 125_000 - 1000})"
    assert second.run(shown).out == expected
