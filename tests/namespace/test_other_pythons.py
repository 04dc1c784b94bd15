"""Case remote-02 with real interpreters of other versions, which TT_OTHER_PYTHONS names (separated
as in PATH); they need nothing but the standard library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kernel_runtime.engines.dill.carrying import carry, unloaded
from kernel_runtime.engines.dill.engine import Loaded
from tests.namespace.namespace_harness import REMOTE_02, Dumped, dump, load

OTHERS = [one for one in os.environ.get("TT_OTHER_PYTHONS", "").split(os.pathsep) if one]
SEEN = "print(data, f(4), p.go(), g(1))"
NAMES = "print(data, sorted({'f', 'P', 'p', 'g'} & set(globals())))"


def version(python: str, tmp_path: Path) -> str:
    return str(dump(tmp_path / "asked", "x = 1", python=python).manifest["python"])


@pytest.mark.skipif(not OTHERS, reason="TT_OTHER_PYTHONS names no other Python")
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("away", [True, False], ids=["to it", "from it"])
def test_there_and_back(tmp_path: Path, other: str, away: bool) -> None:
    """Nothing of another minor version runs; what it is, comes back where it was written."""
    one, two = (sys.executable, other) if away else (other, sys.executable)
    first = dump(tmp_path, REMOTE_02, python=one)
    mine, theirs = (version(python, tmp_path) for python in (one, two))
    same = mine.split(".")[:2] == theirs.split(".")[:2]
    came = load(tmp_path, first, SEEN if same else NAMES, python=two)
    if same:  # another micro version has the same bytecode
        assert came.printed == ["{'x': [1, 2, 3]} 6 3 2\n"] and not came.lost
        return
    assert came.printed == ["{'x': [1, 2, 3]} []\n"]
    assert set(came.lost) == {"f", "P", "p", "g"}
    minor = ".".join(mine.split(".")[:2])
    assert f"compiled by Python {minor} and this is Python " in came.lost["f"]
    assert f"a kernel of Python {minor} loads it" in came.lost["f"]

    lost = [[name, why] for name, why in came.lost.items()]
    held = unloaded(first.manifest, Loaded(came.names, lost))
    assert held is not None
    second = dump(tmp_path, "data = {'x': [1, 2, 3]}", python=two)
    both = Dumped(carry(second.manifest, held), 0, [], second.environment)
    again = load(tmp_path, both, NAMES, python=two)
    assert again.printed == came.printed and again.lost.keys() == came.lost.keys()
    back = load(tmp_path, both, SEEN, python=one)
    assert back.printed == ["{'x': [1, 2, 3]} 6 3 2\n"] and not back.lost
