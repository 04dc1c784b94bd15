"""What did not change is not stored again, and what shares nothing lies apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from namespace_harness import dump, load

MB = 1_000_000


def test_only_what_changed_is_put(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    first, same, one_dict, grown = dump(
        tmp_path,
        """
import numpy as np, pandas as pd
rows = [{"name": f"row {n}", "value": n, "tags": [n, str(n)]} for n in range(100_000)]
arr = np.random.default_rng(1).random(2_000_000); view = arr[::2]
df = pd.DataFrame({"a": arr[:50_000], "s": pd.Series(range(50_000)).astype(str)})
class Thing: pass
things = [Thing() for _ in range(10)]
def f(x): return x + 1
""",
        "pass",
        "rows[50_000]['value'] = 'another'",
        "arr[3] = 1; rows.append({}); g = f; h = lambda: 1",
        dumps=4,
    )
    assert first.lost == same.lost == {}
    assert first.put_bytes > 16 * MB
    assert same.put_bytes < 20_000
    assert one_dict.put_bytes < MB
    assert grown.put_bytes < 5 * MB  # a piece of the array, and the end of the list
    came = load(
        tmp_path,
        one_dict,
        "print(rows[50_000], rows[-1], len(rows), float(arr.sum()) == 0, view.base is arr)",
    )
    assert came.printed == [
        "{'name': 'row 50000', 'value': 'another', 'tags': [50000, '50000']} "
        "{'name': 'row 99999', 'value': 99999, 'tags': [99999, '99999']} 100000 False True\n"
    ]


def test_many_variables_of_one_world_are_walked_once(tmp_path: Path) -> None:
    """A thousand variables that lead into one large structure: it is seen once, not each time."""
    dumped = dump(
        tmp_path,
        """
world = []
class W:
    def __init__(self, i): self.i = i; self.world = world; world.append(self)
for i in range(20_000): W(i)
for i in range(500):
    globals()[f"w{i}"] = world[i]
    globals()[f"l{i}"] = [world[i], i]
alone = [1]
""",
    )
    sizes = sorted(len(unit["names"]) for unit in dumped.manifest["units"])
    assert sizes[-1] == 1001
    assert ["alone"] in [unit["names"] for unit in dumped.manifest["units"]]
    came = load(tmp_path, dumped, "print(w5.world is world, l7[0] is w7, len(world))")
    assert came.printed == ["True True 20000\n"]


def test_single_variables_come_into_the_present(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import math as m
shared = {"n": 1}; a = [shared]; b = (shared, "b"); c = "other"
class Model:
    def __init__(self, w): self.w = w
    def double(self): return helper(self.w) * 2
def helper(x): return x
model = Model(21); it = (i for i in [])
""",
        "7",
    )
    came = load(
        tmp_path,
        dumped,
        "print(a[0] is b[0], model.double(), c, shared, m.pi > 3)",
        "print('Model' in globals(), len(Out), In[1][:5])",
        names=["a", "b", "model", "m", "it", "nowhere"],
        before=["c = 'present'; shared = 'present'; helper = lambda x: x + 1"],
    )
    assert came.printed == ["True 44 present present True\n", "False 0 c = '\n"]
    assert sorted(came.names) == ["a", "b", "m", "model"]
    assert came.lost.keys() == {"it", "nowhere"}
    assert came.lost["nowhere"] == "there is no variable of this name in the checkpoint"


def test_a_class_that_cannot_be_kept_costs_its_instances(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
class Bad: running = (i for i in [])
class Worse(Bad): pass
class Good: pass
bad, worse, good = Bad(), [Worse()], Good()
""",
    )
    assert dumped.lost.keys() == {"Bad", "Worse", "bad", "worse"}
    assert "the class Bad cannot be kept" in dumped.lost["worse"]
    came = load(tmp_path, dumped, "print(type(good) is Good, 'bad' in globals())")
    assert came.printed == ["True False\n"]


def test_what_a_missing_library_costs(tmp_path: Path) -> None:
    """A unit whose module is gone is lost alone; so is an import."""
    (tmp_path / "gone.py").write_text("class Thing: pass\ndef f(): pass\n")
    dumped = dump(
        tmp_path,
        "import sys; sys.path.insert(0, '.'); import gone; from gone import f\n"
        "thing = [gone.Thing()]; other = [1]; both = {'f': f}",
    )
    assert dumped.lost == {}
    (tmp_path / "gone.py").unlink()
    came = load(tmp_path, dumped, "print(other, 'thing' in globals())")
    assert came.printed == ["[1] False\n"]
    assert came.lost.keys() == {"gone", "f", "thing", "both"}
    assert all("No module named 'gone'" in reason for reason in came.lost.values())


def test_what_can_only_load_well_is_not_tried(tmp_path: Path) -> None:
    """A trial costs a process of its own after each cell."""
    pytest.importorskip("pandas")
    dumped = dump(
        tmp_path,
        """
import numpy as np, pandas as pd
x = 1; text = "a"; rows = [{"n": n, "s": {n}} for n in range(9)]; arr = np.arange(9.0)
df = pd.DataFrame({"a": arr, "s": list("abcdefghi")})
class Thing: pass
thing = Thing(); hidden = [Thing()]
def f(x): return x
""",
    )
    tried = {name for unit in dumped.manifest["units"] if unit["try"] for name in unit["names"]}
    assert tried.isdisjoint({"x", "text", "rows", "arr", "df"})
    assert tried >= {"Thing", "thing", "hidden", "f"}
