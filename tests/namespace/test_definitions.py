"""Functions and classes of the session: by value, and with one identity."""

from __future__ import annotations

from pathlib import Path

from namespace_harness import dump, load

CLASSES = """
import abc, collections, dataclasses, enum, functools, typing
from dataclasses import dataclass, field
@dataclass
class D:
    x: int
    y: list = field(default_factory=list, metadata={"k": 1})
@dataclass(frozen=True, order=True, slots=True)
class F:
    a: int = 1
    b: str = "q"
d1 = D(1, [2]); f1 = F(3)
class Meta(type):
    made = []
    def __new__(m, name, bases, ns, **kw):
        cls = super().__new__(m, name, bases, ns); Meta.made.append(name)
        cls.tag = kw.get("tag"); return cls
    def __init__(cls, name, bases, ns, **kw): super().__init__(name, bases, ns)
    def __setattr__(cls, n, v):
        if n == "locked": raise AttributeError("no")
        super().__setattr__(n, v)
class M(metaclass=Meta, tag="t"): pass
class Base:
    subs = []
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(); Base.subs.append(cls); cls.kw = kw
class S1(Base, z=1): pass
class S2(S1, z=2): pass
class Slots:
    __slots__ = ("a", "__b", "__dict__")
    def __init__(self): self.a = 1; self.__b = 2; self.c = 3
    def get(self): return self.__b
sl = Slots()
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @property
    def p(self): return self.area()
@Shape.register
class Foreign: pass
class Sq(Shape):
    def area(self): return 4
sq = Sq()
class Pt(typing.NamedTuple):
    x: int
    y: int = 5
pt = Pt(1)
class TD(typing.TypedDict, total=False):
    k: int
T = typing.TypeVar("T")
class G(typing.Generic[T]):
    def __init__(self, v: T): self.v = v
g = G[int](3); GI = G[int]
@typing.runtime_checkable
class RP(typing.Protocol):
    def area(self) -> int: ...
UserId = typing.NewType("UserId", int)
class Outer:
    class Inner: v = 1
    inst = None
    def make(self): return Outer.Inner()
Outer.inst = Outer(); inn = Outer.Inner(); bound = sq.area
class C2:
    @classmethod
    def c(cls): return cls.__name__
    @staticmethod
    def s(x): return x * 2
    @functools.cached_property
    def cp(self): return [1]
    def __call__(self): return "called"
    def __eq__(self, o): return isinstance(o, C2)
    def __hash__(self): return 7
bc = C2.c; o2 = C2(); o2.cp; key = {o2: 1}
class A: pass
class B: pass
A.b = B; B.a = A; A.inst = B(); ab = A()
class Planet(enum.Enum):
    MERCURY = (3.3, 2.4)
    EARTH = (5.9, 6.3)
    TERRA = (5.9, 6.3)
    def __init__(self, m, r): self.m = m; self.r = r; self.peer = None
Planet.EARTH.peer = Planet.MERCURY
class St(str, enum.Enum): A = "a"
class IE(enum.IntEnum): ONE = 1
Fl = enum.Flag("Fl", "X Y Z"); fl = Fl.X | Fl.Z; default = [Fl.X | Fl.Y]
Fl.usual = default
pl = Planet.EARTH; st = St.A; ie = IE.ONE
class Single:
    def __reduce__(self): return "SINGLE"
SINGLE = Single(); ss = [SINGLE]
class Desc:
    def __set_name__(self, o, n): self.n = self.__dict__.get("n", "") + n
    def __get__(self, i, o): return self.n
class HasD: d = Desc()
class IntSub(int): pass
i5 = IntSub(5); i5.tag = [1]; i6 = i5
class Err(Exception):
    def __init__(self, a, b): super().__init__(a); self.b = b
try:
    try: {}["k"]
    except KeyError as k: raise Err(1, 2) from k
except Err as caught: er = caught
"""

CLASS_CHECKS = {
    "dataclasses": """
print(D(1) == D(1), d1, dataclasses.fields(D)[1].metadata["k"])
print(dataclasses.replace(d1, x=9), D(4).y)
print(f1, F(1) < F(2), hash(f1) == hash(F(3)), isinstance(f1, F), F.__slots__)
try: f1.a = 3
except dataclasses.FrozenInstanceError: print("frozen")
""",
    "metaclasses": """
print(Meta.made, M.tag, type(M) is Meta)
try: M.locked = 1
except AttributeError: print("locked")
print(Base.subs == [S1, S2], S1.kw, S2.kw)
class S3(S1, z=3): pass
print(len(Base.subs), S3.kw)
""",
    "layout": """
print(sl.a, sl.get(), sl.c, Slots.__slots__, Slots().get(), HasD.d)
print(i6 is i5, i5 + 1, i5.tag)
""",
    "abstract": """
print(sq.p, isinstance(Foreign(), Shape), isinstance(sq, Shape), Shape.__abstractmethods__)
try: Shape()
except TypeError: print("abstract")
print(isinstance(sq, RP), isinstance(3, RP), bound(), bound.__self__ is sq)
""",
    "typing": """
print(pt, Pt(1) == pt, isinstance(pt, Pt), pt._replace(x=3), Pt._field_defaults, TD.__total__)
print(G[int] == GI, g.v, isinstance(g, G), G.__parameters__ == (T,), UserId(3), UserId.__name__)
""",
    "members": """
print(Outer().make().v, Outer.inst.__class__ is Outer, isinstance(inn, Outer.Inner))
print(bc(), C2.s(4), o2.cp, key[C2()], o2())
print(A.b is B, B.a is A, isinstance(A.inst, B), isinstance(ab, A), ss[0] is SINGLE)
""",
    "enumerations": """
print(pl is Planet.TERRA, pl.peer is Planet.MERCURY, Planet((5.9, 6.3)) is pl, pl.m)
print(st is St("a"), st == "a", ie + 1, ie is IE(1), list(Planet), len(Planet))
print(fl == Fl.X | Fl.Z, list(Fl), Fl.Y in fl, Fl.usual is default, default[0] is Fl.X | Fl.Y)
""",
    "exceptions": """
print(repr(er), er.b, er.args, repr(er.__cause__), isinstance(er, Err), er.__traceback__)
""",
}

FUNCTIONS = """
import functools, inspect, asyncio, traceback
def deco(fn):
    @functools.wraps(fn)
    def w(*a, **k): w.calls += 1; return fn(*a, **k)
    w.calls = 0
    return w
@deco
def add(a, b=2, *, c: "int" = 3) -> int:
    "doc"
    return a + b + c
add(1)
def outer():
    def fact(n): return 1 if n < 2 else n * fact(n - 1)
    def even(n): return n == 0 or odd(n - 1)
    def odd(n): return n != 0 and even(n - 1)
    return fact, even, odd
fact, even, odd = outer(); cell = fact.__closure__[0]
kept = []
lam = lambda q, k=kept: (k.append(q), k)[1]
lam(1)
par = functools.partial(add, 5, c=1)
def gen(n): yield from range(n)
async def co(): return 9
async def agen():
    yield 1
def unset():
    def inner(): return later
    if False: later = 1
    return inner
inner = unset()
exec("def apart(): return own + 1", own := {"own": 4}); apart = own["apart"]; del own
def fails(): return 1 / 0
copied = fails
rate = 2
def uses_global(x): return x * rate
"""

FUNCTION_CHECKS = """
print(add(1), add.calls, add.__doc__, add.__wrapped__(1), add.__name__, add.__annotations__)
print(fact(5), even(4), odd(3), lam(2) is kept, kept, par(), list(gen(3)))
print(cell is fact.__closure__[0])
print(asyncio.run(co()), inspect.getsource(fact).strip()[:13], apart(), copied is fails)
try: inner()
except NameError: print("unset")
rate = 10; print(uses_global(2), uses_global.__globals__ is globals())
try: fails()
except ZeroDivisionError: print("def fails(): return 1 / 0" in traceback.format_exc())
"""


def test_classes(tmp_path: Path) -> None:
    """Each group of checks prints the same in the session as after a load."""
    there = dump(tmp_path, CLASSES, *CLASS_CHECKS.values())
    assert [text for text in there.printed if "Traceback" in text] == []
    dumped = dump(tmp_path, CLASSES)
    assert (dumped.lost, dumped.manifest["notices"]) == ({}, [])
    came = load(tmp_path, dumped, *CLASS_CHECKS.values())
    assert came.lost == {}
    seen = dict(zip(CLASS_CHECKS, came.printed))
    expected = dict(zip(CLASS_CHECKS, there.printed[1:]))
    assert seen.pop("exceptions") == "Err(1) 2 (1,) KeyError('k') True None\n"
    assert "traceback object" in expected.pop("exceptions")  # which stays behind
    assert seen == expected


def test_functions(tmp_path: Path) -> None:
    there = dump(tmp_path, FUNCTIONS, FUNCTION_CHECKS)
    dumped = dump(tmp_path, FUNCTIONS)
    assert (dumped.lost, dumped.manifest["notices"]) == ({}, [])
    came = load(tmp_path, dumped, FUNCTION_CHECKS)
    assert "Traceback" not in there.printed[1]
    assert (came.lost, came.printed) == ({}, [there.printed[1]])


def test_each_definition_is_a_unit_of_its_own(tmp_path: Path) -> None:
    """Instances do not lie with their class; a class and what it shares do."""
    dumped = dump(
        tmp_path,
        "class A: pass\na, b = A(), A()\ntable = {}\nclass Reg: known = table\n"
        "class P: pass\nclass Q: p = P\nP.q = Q\nq = Q()",
    )
    units = {tuple(unit["names"]): unit for unit in dumped.manifest["units"]}
    assert units["a",]["needs"] == units["b",]["needs"] == [units["A",]["id"]]
    assert units["A",]["kind"] == "definitions"
    assert {("Reg", "table"), ("P", "Q"), ("q",)} <= units.keys()
    assert units["P", "Q"]["defines"] == ["__main__.P", "__main__.Q"]


def test_code_of_another_python_is_refused() -> None:
    import marshal

    import pytest

    from kernel_runtime.executor.namespace import code

    data = marshal.dumps(compile("1", "x", "eval"))
    with pytest.raises(code.OtherPython, match=r"compiled by Python 2\.7 and this is Python 3"):
        code.load_code(data, 1, (2, 7))
