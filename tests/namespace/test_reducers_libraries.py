"""Objects of libraries: figures, databases, models, images; each as a cell would leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
from namespace_harness import dump, load


def test_case_14_pyplot_knows_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    dumped = dump(
        tmp_path,
        """
import matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt
fig, (ax, ax2) = plt.subplots(2, sharex=True); line, = ax.plot([1, 2, 3]); ax.set_title("T")
plt.figure("second"); plt.plot([0]); plt.figure(fig.number)
canvas = fig.canvas; params = plt.rcParams
""",
    )
    assert dumped.lost == {}

    came = load(
        tmp_path,
        dumped,
        """
line.set_ydata([3, 2, 1])
print(list(map(int, ax.lines[0].get_ydata())), line is ax.lines[0], ax.figure is fig)
print(plt.gcf() is fig, plt.get_fignums(), plt.gca() is ax2)
ax.set_xlim(0, 9); print(tuple(map(float, ax2.get_xlim()))); plt.figure("second")
print(len(plt.gca().lines), plt.get_fignums())
print(fig.number, canvas.figure is fig, params is plt.rcParams); fig.savefig("x.png")
""",
    )
    # a figure alone comes without a number: pyplot's own figures stay as they are
    alone = load(
        tmp_path,
        dumped,
        "print(plt.get_fignums(), fig.axes[0].get_title()); fig.savefig('y.png')",
        names=["fig"],
        before=(
            "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt; "
            "plt.figure(7)",
        ),
    )

    assert came.printed == [
        "[3, 2, 1] True True\nTrue [1, 2] True\n(0.0, 9.0)\n1 [1, 2]\n1 True True\n"
    ]
    assert alone.printed == ["[7] T\n"]


def test_databases(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    dumped = dump(
        tmp_path,
        """
import sqlite3, duckdb
con = sqlite3.connect(":memory:"); con.execute("create table t(x)")
con.execute("insert into t values (5)"); con.commit()
con.row_factory = sqlite3.Row; row = con.execute("select x as y from t").fetchone()
con.create_function("twice", 1, lambda x: 2 * x)
file = sqlite3.connect("f.db"); file.execute("create table t(x)"); file.commit()
file.execute("insert into t values (1)")
cursor = con.execute("select * from t")
gone = sqlite3.connect("gone.db"); gone.execute("create table t(x)")
class Db(sqlite3.Connection): pass
own = sqlite3.connect(":memory:", factory=Db)
two = sqlite3.connect(":memory:"); two.execute("attach ':memory:' as other")
two.execute("create table other.o as select 3 as x")
""",
        """
dk = duckdb.connect(); dk.execute("create schema s; create table s.t(a int, b varchar)")
dk.execute("insert into s.t values (1, 'x'); create view v as select a + 1 as c from s.t")
dk.execute("create sequence n; create index i on s.t(a)"); dk.execute("select nextval('n')")
stored = duckdb.connect("d.db"); stored.execute("create table u(a int); insert into u values (7)")
stored.execute("checkpoint")
duckdb.sql("create table in_no_variable as select 5 as x"); rel = dk.sql("select 1")
""",
    )
    assert set(dumped.lost) == {"cursor", "rel"}
    notices = dict(dumped.manifest["notices"])
    assert "twice()" in notices["con"] and "rolled back" in notices["file"]
    (tmp_path / "gone.db").unlink()

    came = load(
        tmp_path,
        dumped,
        "print(con.execute('select * from t').fetchone()['x'], row['y'], "
        "file.execute('select count(*) from t').fetchone(), type(own).__name__, "
        "two.execute('select x from other.o').fetchone())",
        "print(dk.sql('select * from s.t').fetchall(), dk.sql('select * from v').fetchall(), "
        "dk.sql(\"select nextval('n')\").fetchall())\n"
        "print(stored.sql('select * from u').fetchall(), "
        "duckdb.sql('select * from in_no_variable').fetchall())",
    )

    assert came.printed == ["5 5 (0,) Db (3,)\n", "[(1, 'x')] [(2,)] [(2,)]\n[(7,)] [(5,)]\n"]
    assert "is not there any more" in came.lost["gone"]
    assert not (tmp_path / "gone.db").exists()


def test_tables_of_duckdb_without_arrow(tmp_path: Path) -> None:
    """Rows of all types, and so many that one by one they would take minutes."""
    pytest.importorskip("duckdb")
    dumped = dump(
        tmp_path,
        """
import duckdb
dk = duckdb.connect()
dk.execute("create type mood as enum ('sad', 'ok')")
dk.execute('''create table t(n bigint, s varchar, d date, ts timestamp, de decimal(18, 3), l int[],
    st struct(a int, b varchar), m map(varchar, int), u uuid, bl blob, iv interval, bo boolean,
    h hugeint, tm time, mood mood)''')
dk.execute('''insert into t values (1, 'x', '2020-01-01', '2020-01-01 10:11:12', 1.5, [1, null],
    {'a': 1, 'b': 'z'}, map {'k': 1}, 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6', 'ab', interval 3 day,
    true, 170141183460469231731687303715884105727, '10:11:12', 'ok')''')
dk.execute("insert into t (n) values (2)")
dk.execute("create table large as select range as n, 'r' || range as s from range(100000)")
before = str(dk.sql("select * from t").fetchall())
""",
    )
    assert not dumped.lost
    show = (
        "print(str(dk.sql('select * from t').fetchall()) == before, "
        "dk.sql('select count(*), sum(n), max(s) from large').fetchall())"
    )
    came = load(tmp_path, dumped, show)
    assert came.printed == ["True [(100000, 4999950000, 'r99999')]\n"]


def test_models_images_and_what_belongs_to_the_page(tmp_path: Path) -> None:
    for name in ("attr", "pydantic", "PIL", "polars", "pyarrow", "sklearn", "ipywidgets", "tqdm"):
        pytest.importorskip(name)
    dumped = dump(
        tmp_path,
        """
import attr, pydantic, PIL.Image, polars as pl, pyarrow as pa, numpy as np
import sklearn.linear_model, ipywidgets, tqdm, IPython.display
@attr.define
class Slotted: y: int = 4
slotted = Slotted()
class Model(pydantic.BaseModel):
    a: int
    b: list[int] = []
model = Model(a="5")
img = PIL.Image.new("RGB", (4, 4), "red"); img.save("i.png"); lazy_img = PIL.Image.open("i.png")
read_img = PIL.Image.open("i.png"); read_img.load(); frame = pl.DataFrame({"a": [1, 2]})
lazy = frame.lazy().filter(pl.col("a") > 1)
table = pa.table({"x": [1]})
fitted = sklearn.linear_model.LinearRegression().fit([[0], [1]], [0, 1])
rng = np.random.default_rng(3); rng.random(); old = np.random.RandomState(3); old.rand()
widget = ipywidgets.IntSlider(); bar = tqdm.tqdm(range(3), file=open("bar.txt", "w"))
shown = IPython.display.HTML("x")
""",
    )
    assert set(dumped.lost) == {"widget", "bar"}

    came = load(
        tmp_path,
        dumped,
        "print(slotted == Slotted(4), isinstance(model, Model), Model(a=1).a, "
        "model.model_dump_json())",
        "print(img.getpixel((0, 0)) == lazy_img.getpixel((0, 0)) == read_img.getpixel((1, 1)), "
        "frame['a'].to_list(), lazy.collect()['a'].to_list(), "
        "table['x'].to_pylist(), fitted.predict([[3]]).round().tolist(), shown.data)\n"
        "a, b = np.random.default_rng(3), np.random.RandomState(3); a.random(); b.rand()\n"
        "print(rng.random() == a.random(), old.rand() == b.rand())",
    )

    assert came.printed == [
        'True True 1 {"a":5,"b":[]}\n',
        "True [1, 2] [2] [1] [3.0] x\nTrue True\n",
    ]


@pytest.mark.torch
def test_tensors_share_their_storage(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dumped = dump(
        tmp_path,
        """
import torch, torch.nn as nn, numpy as np
t = torch.arange(6.); v = t[::2]; m = t.view(2, 3); turned = m.T; alias = t; t.tag = "x"
layer = nn.Linear(2, 2); opt = torch.optim.Adam(layer.parameters(), lr=.1)
layer(torch.ones(1, 2)).sum().backward(); opt.step()
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(3, 3); self.b = self.a
        self.register_buffer("buf", torch.zeros(2))
    def forward(self, x): return self.a(x)
net = Net(); loss = net(torch.ones(1, 3)).sum()
half = torch.ones(3, dtype=torch.bfloat16); conj = torch.ones(2, dtype=torch.complex64).conj()
empty = torch.empty(0)
sparse = torch.eye(3).to_sparse(); meta = torch.empty(3, device="meta"); g = torch.Generator()
g.manual_seed(4)
array = np.zeros(4); outside = torch.from_numpy(array)
torch.manual_seed(1); torch.rand(1); torch.set_default_dtype(torch.float64)
""",
    )
    assert dumped.lost == {}
    # whose memory it is cannot be told before torch 2
    told = {"loss", "outside"} if hasattr(torch.Tensor, "untyped_storage") else {"loss"}
    assert {name for name, _ in dumped.manifest["notices"]} == told

    came = load(
        tmp_path,
        dumped,
        "t[0] = 9; print(v[0].item(), m[0, 0].item(), turned[0, 0].item(), alias is t, t.tag)",
        "p = opt.param_groups[0]['params'][0]; print(p is layer.weight, "
        "opt.state[p]['step'].item(), p.grad is not None)\n"
        "print(net.b is net.a, type(net.a.weight).__name__, loss.requires_grad)",
        "print(half.dtype, conj.is_conj(), empty.shape, sparse.to_dense().sum().item(), "
        "meta.device, torch.get_default_dtype())\n"
        "h = torch.Generator(); h.manual_seed(4); print(torch.equal(torch.rand(2, "
        "generator=g), torch.rand(2, generator=h)))\n"
        "x = torch.rand(1, dtype=torch.float32); torch.manual_seed(1); torch.rand(1, "
        "dtype=torch.float32); print(torch.equal(x, torch.rand(1, dtype=torch.float32)))",
    )

    assert came.printed == [
        "9.0 9.0 9.0 True x\n",
        "True 1.0 True\nTrue Parameter True\n",
        "torch.bfloat16 True torch.Size([0]) 3.0 meta torch.float64\nTrue\nTrue\n",
    ]
