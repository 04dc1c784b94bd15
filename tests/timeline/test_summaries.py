"""Summaries of real variables: what is told, what is noticed, and that no user code runs."""

from __future__ import annotations

import collections
import datetime
import decimal
import json
import mmap
import pathlib
import subprocess
import sys
import threading
import types

import pytest

from kernel_runtime.executor.variables import summarize
from kernel_runtime.timeline.variables import diff

np = pytest.importorskip("numpy")
UNLIMITED = 60.0


def one(value, **options):
    return summarize({"x": value}, budget_s=UNLIMITED, **options)["x"]


def noticed(value, change) -> bool:
    """Whether a change in place is seen."""
    before = summarize({"x": value}, budget_s=UNLIMITED)
    change(value)
    return bool(diff(before, summarize({"x": value}, budget_s=UNLIMITED))["changed"])


class Hostile:
    """Every way to run code of its class ends the test."""

    ran: list[str]

    def _tell(self, *args, **kwargs):
        raise BaseException("user code ran")

    __repr__ = __str__ = __len__ = __eq__ = __hash__ = __bool__ = __sizeof__ = _tell
    __iter__ = __getattr__ = __getattribute__ = __dir__ = __reduce__ = __format__ = _tell
    __class__ = property(_tell)
    __dict__ = property(_tell)


class HostileMeta(type):
    def _tell(cls, *args):
        raise BaseException("user code of a metaclass ran")

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = __repr__ = _tell
    __getattribute__ = _tell
    __name__ = __mro__ = property(_tell)


class HostileList(list):
    __len__ = __iter__ = __getitem__ = __repr__ = __eq__ = Hostile._tell


class HostileDict(dict):
    __len__ = __iter__ = __getitem__ = items = keys = values = Hostile._tell
    __reversed__ = Hostile._tell


class HostileInt(int):
    __repr__ = __str__ = __format__ = __index__ = __lt__ = __gt__ = Hostile._tell


class HostileSlots:
    __slots__ = ("a", "b")
    __getattr__ = Hostile._tell

    def __init__(self):
        self.a = 1


class HostileZone(datetime.tzinfo):
    utcoffset = __repr__ = __str__ = Hostile._tell


def hostile_key(value):
    # Made with the hash of a plain string, then hostile.
    class Key(str):
        armed = False

        def __hash__(self):
            if Key.armed:
                Hostile._tell(self)
            return str.__hash__(self)

        def __eq__(self, other):
            if Key.armed:
                Hostile._tell(self)
            return str.__eq__(self, other)

        __repr__ = __str__ = __len__ = Hostile._tell

    found = {Key("k"): value}
    Key.armed = True
    return found


class HostileArray(np.ndarray):
    __getattribute__ = __getitem__ = __len__ = __repr__ = Hostile._tell


def test_no_code_of_the_user_runs():
    class FromHostileMeta(metaclass=HostileMeta):
        """Not in the module, where pytest would look at it."""

    array = np.ndarray.__new__(HostileArray, 3)
    objects = np.empty(1, dtype=object)
    objects[0] = object.__new__(Hostile)
    namespace = {
        "object": object.__new__(Hostile),
        "cls": Hostile,
        "meta": FromHostileMeta,
        "meta_object": FromHostileMeta(),
        "list": HostileList([1]),
        "dict": HostileDict(a=1),
        "int": HostileInt(3),
        "slots": HostileSlots(),
        "zone": datetime.datetime(2025, 1, 1, tzinfo=HostileZone()),
        "array": array,
        "inside": [object.__new__(Hostile), {1: HostileInt(3)}, HostileList([1]), array],
        "in_dict": {"k": object.__new__(Hostile)},
        "key": hostile_key(1),
        "objects": objects,
        "closure": (lambda held: lambda: held)(object.__new__(Hostile)),
        "deque": collections.deque([object.__new__(Hostile)]),
        "generator": (n for n in [1]),
        "counter": __import__("itertools").count(),
    }
    found = summarize(namespace, budget_s=UNLIMITED)
    assert found.keys() == namespace.keys()
    assert found["object"]["type"] == "Hostile"
    assert found["meta_object"]["type"] == "FromHostileMeta"
    assert found["list"]["shape"] == "length 1"
    assert found["int"]["value"] is None
    assert next(namespace["counter"]) == 0 and next(namespace["generator"]) == 1
    json.dumps(found)


def test_lazy_modules_and_pure_python_proxies_do_not_wake(tmp_path, monkeypatch):
    import importlib.util

    (tmp_path / "sleeping_module.py").write_text("raise BaseException('woken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("sleeping_module")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert one(module)["type"] == "_LazyModule"
    assert one(types.ModuleType("plain"))["value"] == "plain"


def test_nothing_is_imported_and_the_standard_library_is_enough():
    code = (
        "import sys; before = set(sys.modules)\n"
        "from kernel_runtime.executor.variables import summarize\n"
        "summarize({'x': [1], 's': 'a', 'f': summarize})\n"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "['kernel_runtime']", done.stderr


def test_no_reference_is_kept():
    value = [object()]
    counts = [sys.getrefcount(value), sys.getrefcount(value[0])]
    found = summarize({"x": value, "y": {"k": value}})
    assert [sys.getrefcount(value), sys.getrefcount(value[0])] == counts
    json.dumps(found)


@pytest.mark.parametrize(
    ("value", "type_name", "shape", "text"),
    [
        (7, "int", None, "7"),
        (True, "bool", None, "True"),
        (None, "NoneType", None, "None"),
        (2.5, "float", None, "2.5"),
        (1 << 4000, "int", None, "4001 bits"),
        ("a'b\n", "str", "length 4", repr("a'b\n")),
        ("\ud800", "str", "length 1", "'\\ud800'"),
        (b"\xff", "bytes", "length 1", "b'\\xff'"),
        (bytearray(b"ab"), "bytearray", "length 2", "b'ab'"),
        ([1, "a", [2]], "list", "length 3", "[1, 'a', list]"),
        ((1,), "tuple", "length 1", "(1)"),
        ({"a": 1}, "dict", "length 1", "{'a': 1}"),
        (set(), "set", "length 0", "{}"),
        (collections.deque([1]), "deque", "length 1", "[1]"),
        (collections.Counter("aa"), "Counter", "length 1", "{'a': 2}"),
        (range(3), "range", None, "range(0, 3)"),
        (np, "module", None, "numpy"),
        (np.zeros((2, 3)), "ndarray", "2 x 3 float64", None),
        (np.float64(1.5), "float64", None, "1.5"),
        (pathlib.Path("a/b"), "PosixPath", None, "a/b"),
        (pathlib.Path("a\udcff"), "PosixPath", None, "a\\udcff"),
        (datetime.date(2025, 1, 2), "date", None, "2025-01-02"),
        (decimal.Decimal("1.50"), "Decimal", None, "1.50"),
    ],
)
def test_what_is_told(value, type_name, shape, text):
    found = one(value)
    assert (found["type"], found["shape"], found["value"]) == (type_name, shape, text)
    json.dumps(found, ensure_ascii=False).encode()


def test_values_are_short_whatever_the_size():
    for value in ("x" * 10**7, list(range(10**6)), dict.fromkeys(range(100), "y" * 1000)):
        assert len(one(value)["value"]) < 70


def test_history_and_hidden_names_are_left_out():
    given = {"In": [], "Out": {}, "_": 1, "__": 1, "_i": "", "_ih": [], "_i12": "", "_12": 3}
    given |= {"__name__": "__main__", "get_ipython": 1, "quit": 2}
    kept = {"x": 1, "_mine": 2, "_i_too": 3, "I": 4, "Output": 5}
    assert summarize({**given, **kept}, {"get_ipython", "quit"}).keys() == kept.keys()
    hidden = {"quit": given["quit"], "open": open}
    assert summarize({"quit": 2, "open": "rebound"}, hidden).keys() == {"open"}


def test_odd_names_are_told_as_text():
    found = summarize({"\ud800": 1, 5: 2, "é": 3})
    assert found.keys() == {"\\ud800", "é"}


class Point:
    def __init__(self):
        self.x = 1
        self.parts = {"a": 1}


class Slotted:
    __slots__ = ("x",)

    def __init__(self):
        self.x = 1


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: [1, 2], lambda v: v.append(3)),
        (lambda: list(range(1000)), lambda v: v.__setitem__(-1, 0)),
        (lambda: [[1], [2]], lambda v: v[0].append(1)),
        (lambda: {"a": 1}, lambda v: v.update(a=2)),
        (lambda: {n: n for n in range(1000)}, lambda v: v.update({999: 0})),
        (lambda: {"a": []}, lambda v: v["a"].append(1)),
        (lambda: {1, 2}, lambda v: v.add(3)),
        (lambda: bytearray(100_000), lambda v: v.__setitem__(0, 1)),
        (lambda: bytearray(50_000), lambda v: v.__setitem__(33_333, 1)),
        (lambda: collections.defaultdict(int), lambda v: v.update(a=2)),
        (lambda: collections.deque([1]), lambda v: v.append(2)),
        (Point, lambda v: setattr(v, "x", 2)),
        (Point, lambda v: v.parts.update(a=2)),
        (Slotted, lambda v: setattr(v, "x", 2)),
        (lambda: type("C", (), {"n": 1}), lambda v: setattr(v, "n", 2)),
        (lambda: HostileList([1]), lambda v: list.append(v, 2)),
        (lambda: np.zeros(100), lambda v: v.__setitem__(50, 1)),
        (lambda: np.zeros(100_000), lambda v: v.__setitem__(77_777, 1)),
        (lambda: np.zeros(1_000_000), lambda v: np.add(v, 1, out=v)),
        (lambda: np.zeros((300, 400)).T, lambda v: v.__setitem__((5, 5), 1)),
        (lambda: np.zeros((60, 60))[::2, ::2], lambda v: v.__setitem__((5, 5), 1)),
        (lambda: np.zeros((2000, 2000))[::2, ::2], lambda v: np.add(v, 1, out=v)),
        (lambda: np.array([1, "a"], dtype=object), lambda v: v.__setitem__(0, 2)),
        (lambda: np.array("2025", dtype="M8[s]"), lambda v: v.fill("2026")),
        (lambda: [np.zeros(5)], lambda v: v[0].__setitem__(0, 1)),
    ],
)
def test_changes_in_place_are_noticed(make, change):
    value = make()
    assert not noticed(value, lambda v: None)
    assert noticed(value, change)


def test_what_is_missed_is_what_the_documentation_says():
    assert not noticed([[[1]]], lambda v: v[0][0].append(2))
    assert not noticed({n: n for n in range(1000)}, lambda v: v.update({500: 0}))
    assert not noticed(np.zeros(10_000_000), lambda v: v.__setitem__(5_000_001, 1))


def test_the_same_definition_run_again_is_no_change():
    def run(code):
        namespace = {}
        exec(code, namespace)
        return summarize(namespace, budget_s=UNLIMITED)

    def changed(before, after):
        return diff(run(before), run(after))["changed"] != []

    code = "def f(x, y=1):\n    'doc'\n    def g(): return [x, (1, 2), 'text' * 3]\n    return g\n"
    assert not changed(code, "\n\n# moved\n" + code)
    for one_edit in ("1, 3", "y=2", "'texts'", "[y"):
        old = {"1, 3": "1, 2", "y=2": "y=1", "'texts'": "'text'", "[y": "[x"}[one_edit]
        assert changed(code, code.replace(old, one_edit)), one_edit


def test_equal_plain_values_are_equal_across_processes():
    code = (
        "import json; from kernel_runtime.executor.variables import summarize\n"
        "print(json.dumps(summarize({'s': 'é' * 100, 'n': 3, 'l': [1, 'a'], 'd': {'k': 2.5}})))"
    )
    seen = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code],
                capture_output=True,
                check=True,
                cwd=pathlib.Path(__file__).parents[2],
            ).stdout
        )
        for _ in range(2)
    ]
    assert diff(*seen) == {"added": [], "removed": [], "changed": []}


def test_arrays_on_files_are_not_read(tmp_path):
    (tmp_path / "f").write_bytes(bytes(8192))
    mapped = np.memmap(tmp_path / "f", dtype="u1", mode="r+")
    with open(tmp_path / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as raw:
        for value in (mapped, np.asarray(mapped), np.frombuffer(raw, "u1")):
            assert one(value)["fingerprint"].keys() == {"id"}
            assert one(value)["size"] == 8192
        del value


def test_over_the_budget_the_shape_is_still_told_and_nothing_is_compared_wrongly():
    namespace = {
        "array": np.zeros(100_000),
        "list": list(range(100)),
        "text": "x" * 10_000,
        "plain": 3,
    }
    full = summarize(namespace, budget_s=UNLIMITED)
    hasty = summarize(namespace, budget_s=0.0)
    assert hasty["array"]["shape"] == "100000 float64"
    assert hasty["array"]["fingerprint"].keys() == {"id"}
    assert hasty["plain"] == full["plain"]
    assert diff(full, hasty)["changed"] == diff(hasty, full)["changed"] == []
    namespace["array"] = np.zeros(100_000)
    assert [c["name"] for c in diff(full, summarize(namespace, budget_s=0.0))["changed"]] == [
        "array"
    ]


def test_a_namespace_that_changes_meanwhile_does_no_harm():
    namespace = {f"v{n}": {n: n for n in range(50)} for n in range(200)}
    stop = threading.Event()

    def churn():
        n = 0
        while not stop.is_set():
            n += 1
            namespace[f"new{n % 1000}"] = n
            namespace["v0"][n % 5000] = n
            namespace.pop(f"new{(n - 500) % 1000}", None)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            assert summarize(namespace)["v5"]["shape"] == "length 50"
    finally:
        stop.set()
        thread.join()


def test_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": range(1000), "b": np.zeros(1000), "c": ["x"] * 1000})
    found = one(frame)
    assert found["shape"] == "1000 x 3" and found["size"] > 16_000
    assert noticed(frame, lambda f: f.__setitem__("d", 1))
    assert noticed(frame, lambda f: f.loc.__setitem__((500, "b"), 3.0))
    assert noticed(frame, lambda f: f.pop("a"))
    assert not noticed(frame, lambda f: f.sum(numeric_only=True))
    series = pd.Series(pd.Categorical(["x", "y"]))
    assert one(series)["shape"] == "2"
    assert noticed(series, lambda s: s.__setitem__(0, "y"))


def test_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    assert one(frame)["shape"] == "2 x 2"
    assert noticed(frame, lambda f: f.insert_column(0, pl.Series("c", [3, 4])))
    assert not noticed(frame, lambda f: f.__setitem__((0, "a"), 9))  # as the module says
    assert not noticed(frame, lambda f: f.select("a"))
    assert one(pl.Series([1, 2]))["shape"] == "length 2"
    assert one(frame.lazy())["type"] == "LazyFrame"


@pytest.mark.torch
def test_torch():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3)
    assert one(tensor)["shape"] == "2 x 3 torch.float32 cpu"
    assert noticed(tensor, lambda t: t.add_(1))
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        assert noticed(layer, lambda m: m.weight.add_(1))
