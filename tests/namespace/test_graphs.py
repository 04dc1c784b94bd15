"""Random object graphs, with sharing and cycles, come back isomorphic over all variables."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from namespace_harness import dump, load

KINDS = ("list", "dict", "set", "object", "slots", "function", "tuple", "array", "view", "class")

BUILD = """
import json
try: import numpy as np
except ImportError: np = None
class Plain: pass
class Slots: __slots__ = ("a", "b", "c")
def closing(cell):
    def function(): return cell
    def put(value):
        nonlocal cell; cell = value
    function.put = put
    return function
def build(nodes, prefix):
    made = []
    for number, (kind, _) in enumerate(nodes):
        if kind in ("array", "view") and np is None: kind = "list"
        earlier = [m for m in made if type(m).__name__ == "ndarray"]
        if kind == "list": made.append([])
        elif kind == "dict": made.append({})
        elif kind == "set": made.append(set())
        elif kind == "object": made.append(Plain())
        elif kind == "slots": made.append(Slots())
        elif kind == "function": made.append(closing(None))
        elif kind == "tuple": made.append(([], "t", []))
        elif kind == "class": made.append(type(f"C{number}", (), {}))
        elif kind == "view" and earlier: made.append(earlier[-1][1:])
        else: made.append(np.arange(number + 3) * 1.5)
    for number, (obj, (_, edges)) in enumerate(zip(made, nodes)):
        for place, edge in enumerate(edges):
            other = made[edge % len(made)]
            if type(obj) is list: obj.append(other)
            elif type(obj) is dict: obj[place] = other
            elif type(obj) is set: obj.add(f"{number}.{place}")
            elif type(obj) is Plain or isinstance(obj, type): setattr(obj, f"x{place}", other)
            elif type(obj) is Slots: setattr(obj, "abc"[place], other)
            elif callable(obj): obj.put(other)
            elif type(obj) is tuple: obj[2 * (place % 2)].append(other)
    for number, obj in enumerate(made):
        globals()[f"{prefix}_{number}"] = obj
"""

DESCRIBE = """
def describe():
    numbers, told, waiting = {}, [], []
    def see(value):
        if value is None or type(value) in (int, str, float): return value
        if id(value) not in numbers:
            numbers[id(value)] = len(numbers); waiting.append(value)
        return f"#{numbers[id(value)]}"
    for name in sorted(n for n in globals() if n[0] == "g" and "_" in n):
        told.append((name, see(globals()[name])))
    while waiting:
        value = waiting.pop(0); kind = type(value).__name__
        if type(value) is list or type(value) is tuple: parts = [see(v) for v in value]
        elif type(value) is dict: parts = [(k, see(v)) for k, v in value.items()]
        elif type(value) is set: parts = list(value)
        elif type(value) is Plain: parts = [(k, see(v)) for k, v in vars(value).items()]
        elif type(value) is Slots:
            parts = [(k, see(getattr(value, k))) for k in "abc" if hasattr(value, k)]
        elif isinstance(value, type):
            names = sorted(name for name in vars(value) if name[0] == "x")
            parts = [value.__name__] + [(k, see(getattr(value, k))) for k in names]
        elif kind == "ndarray": parts = [see(value.base), value.tolist()]
        elif kind == "cell": parts = [see(value.cell_contents)]
        else: parts = [see(value.__closure__[0]), see(value.put.__closure__[0])]
        told.append((kind, parts))
    return json.dumps(told)
print(describe())
"""

nodes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 9), max_size=3)),
    min_size=1,
    max_size=10,
)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # two processes are too dear to shrink
)
@given(graphs=st.lists(nodes, min_size=15, max_size=30))
def test_graphs_come_back_isomorphic(graphs: list[Any]) -> None:
    cells = [BUILD]
    cells += [f"build(json.loads({json.dumps(g)!r}), 'g{n}')" for n, g in enumerate(graphs)]
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory)
        dumped = dump(store, *cells, DESCRIBE)
        assert (dumped.lost, set(dumped.printed[:-1])) == ({}, {""})
        came = load(store, dumped, DESCRIBE)
        assert came.lost == {}
        there, here = json.loads(dumped.printed[-1]), json.loads(came.printed[0])
        assert [pair for pair in zip(there, here) if pair[0] != pair[1]] == []
        assert len(there) == len(here) > 0
