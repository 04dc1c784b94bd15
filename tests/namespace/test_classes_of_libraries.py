"""What libraries make of a user's functions and classes: models, generated methods, ufuncs."""

from __future__ import annotations

from pathlib import Path

import pytest
from namespace_harness import dump, load


def test_models_with_validators(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    dumped = dump(
        tmp_path,
        """
from pydantic import BaseModel, Field, computed_field, field_validator
class M(BaseModel):
    a: int = Field(gt=0)
    kids: list["M"] = []
    @field_validator("a", mode="before")
    @classmethod
    def more(cls, v): return int(v) + 1
    @computed_field
    @property
    def twice(self) -> int: return self.a * 2
m = M(a="1", kids=[M(a=2)])
""",
    )
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "print(m.a, type(m.kids[0]) is M, M(a='4').model_dump(), M.more(8))\n"
        "try: M(a=-5)\nexcept ValueError as error: print(error.error_count())",
    )
    assert came.lost == {}
    assert came.printed == ["2 True {'a': 5, 'kids': [], 'twice': 10} 9\n1\n"]


def test_generated_methods_keep_only_the_names_that_they_ask_for(tmp_path: Path) -> None:
    pytest.importorskip("attrs")
    dumped = dump(
        tmp_path,
        """
import attrs
running = (i for i in range(3)); data = [1]
@attrs.define
class A:
    x: int
    y: list = attrs.field(factory=list, validator=attrs.validators.instance_of(list))
a = A(1)
own = {"__name__": "__main__"}
exec("k = 1\\ndef up():\\n  global k\\n  k += 1\\ndef get(): return k", own)
""",
    )
    assert set(dumped.lost) == {"running"}
    units = dumped.manifest["units"]
    assert not any({"A", "data"} <= set(unit["names"]) for unit in units)
    came = load(
        tmp_path,
        dumped,
        "print(a, A(2), attrs.fields(A).x.name); own['up'](); print(own['get'](), own['k'])\n"
        "try: A(1, 2)\nexcept TypeError: print('refused')",
    )
    assert came.printed == ["A(x=1, y=[]) A(x=2, y=[]) x\n2 2\nrefused\n"]


def test_bound_methods_wherever_they_hang(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import types
class Q: pass
def f(self): return self.n
q = Q(); q.n = 3; q.m = types.MethodType(f, q); alone = types.MethodType(f, q)
of_c = types.MethodType(len, [1])
class W:
    def go(self): return self.v
    @classmethod
    def make(cls): return cls
w = W(); w.v = 4; w.callback = w.go; W.maker = W.make; W.first = w.go; hooks = [w.go, W.make]
""",
    )
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "print(q.m(), alone(), of_c(), q.m.__self__ is q, w.callback(), W.maker() is W)\n"
        "print(W.first.__self__ is w, hooks[0](), hooks[1]() is W)",
    )
    assert came.printed == ["3 3 1 True 4 True\nTrue 4 True\n"]


def test_ufuncs_made_of_functions(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    dumped = dump(
        tmp_path,
        """
import numpy as np
v = np.vectorize(lambda x: x * 2, otypes=[float]); v([1, 2])
add = np.frompyfunc(lambda a, b: a + b, 2, 1, identity=0); reduce = add.reduce
upper = np.frompyfunc(str.upper, 1, 1)
""",
    )
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "print(v([3]), add(1, 2), add.identity, reduce([1, 2, 3]), upper('a'))",
    )
    assert came.printed == ["[6.] 3 0 6 A\n"]


def test_compiled_expressions(tmp_path: Path) -> None:
    pytest.importorskip("sympy")
    pytest.importorskip("scipy")
    dumped = dump(
        tmp_path,
        "import sympy, scipy.special\nx, y = sympy.symbols('x y'); e = x ** 2 + y\n"
        "f = sympy.lambdify((x, y), e); harmonic = scipy.special.sph_harm_y",
    )
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "print(f(3, 1), e.free_symbols == {x, y}, harmonic is scipy.special.sph_harm_y)",
    )
    assert came.printed == ["10 True True\n"]


def test_a_colorbar_follows_its_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    dumped = dump(
        tmp_path,
        """
import matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt
fig, ax = plt.subplots(); image = ax.imshow([[0, 1], [1, 0]]); bar = fig.colorbar(image)
""",
    )
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "image.set_clim(0, 5); image.set_cmap('gray'); print(bar.vmax, bar.cmap.name)",
    )
    assert came.printed == ["5.0 gray\n"]


def test_what_cannot_be_kept_says_why(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        "import contextvars, csv, io\nvar = contextvars.ContextVar('v'); token = var.set(1)\n"
        "context = contextvars.copy_context(); writer = csv.writer(io.StringIO())\n"
        "reader = csv.DictReader(['a', '1'])",
    )
    assert dumped.lost == {
        "token": "a Token cannot be kept: it belongs to a change that was made before",
        "context": "a Context cannot be kept: libraries keep what is running in it",
        "writer": "a csv writer cannot be kept: nothing shows what it writes to",
        "reader": "reader.reader: a csv reader cannot be kept: it stands in the middle of its text",
    }
    assert load(tmp_path, dumped, "print(var.get())").printed == ["1\n"]
