"""group-02: the store has no room when the group is captured, or restored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Notebook
from tests.groups.conftest import ran

pytestmark = pytest.mark.root
MIB = 1 << 20


def fill(directory: Path) -> Path:
    """Leave nothing."""
    path = directory / "filler"
    with open(path, "ab") as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    os.write(file.fileno(), b"x" * size)
            except OSError:
                pass
    return path


def test_a_store_that_is_full(
    small: Path, on: Callable[..., Notebook], tt: Callable[..., Any], folder: Path
) -> None:
    members = [on(name, "--Supervisor.auto=off") for name in "AB"]
    for one in members:
        ran(one, "n = 1")
    tt("group", "create", "g", folder / "A.ipynb", folder / "B.ipynb")
    tt("checkpoint", "--group", "g")
    # one member has what does not fit: the other's checkpoint is made, the record is not
    (folder / "big.bin").write_bytes(os.urandom(60 * MIB))
    filler = fill(small)
    for one in members:
        one.run("n = 2")
    for words, reason in (
        (("checkpoint", "--group", "g"), "not stored: "),
        (("restore", "--group", "g", "G1"), "No room in the store"),
    ):
        said = tt(*words, "--timeout", 20, status=1)
        assert reason in said
        assert "A: " in said or "B: " in said
        assert [one.run("print(n)").out for one in members] == ["2", "2"]
        shown = tt("group", "show", "g")
        assert [one["title"] for one in shown["records"]] == ["G1"]
        assert not shown["unfinished"]
    filler.unlink()
    (folder / "big.bin").unlink()
    assert tt("checkpoint", "--group", "g")["record"]["title"] == "G2"
    tt("restore", "--group", "g", "G1")
    assert [one.run("print(n)").out for one in members] == ["1", "1"]
