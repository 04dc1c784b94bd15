"""What dill is asked for, and what is said where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from namespace_harness import dump, load

CELL = """
accessor = int.__dict__["real"]
class A: pass
bound_super = super(A, A())
other = [1]
"""


def test_what_dill_knows(tmp_path: Path) -> None:
    dumped = dump(tmp_path, CELL)
    assert dumped.lost == {}
    came = load(tmp_path, dumped, "print(accessor is int.__dict__['real'], type(bound_super))")
    assert came.printed == ["True <class 'super'>\n"]


def test_without_dill(tmp_path: Path) -> None:
    dumped = dump(tmp_path, "import sys; sys.modules['dill'] = None", CELL)
    reason = "a getset descriptor cannot be kept without the package dill, which "
    reason += f"{sys.executable} does not have"
    assert dumped.lost == {"accessor": reason}


def test_files_are_never_left_to_dill() -> None:
    from kernel_runtime.executor.namespace import dill_way
    from kernel_runtime.executor.namespace.registry import NotKept

    pytest.importorskip("dill")
    with open(sys.executable, "rb") as file, pytest.raises(NotKept, match="cannot be kept"):
        dill_way.reduce(file)
