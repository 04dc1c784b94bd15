"""The same workload under this kernel and under Kishu, in turns, in one run.

    python -m venv /some/where && /some/where/bin/pip install kishu==0.3.4 ipykernel scikit-learn
    python bench/against_kishu.py --kishu /some/where/bin/python [--interval 0] [--quick] [--json]

Both sides write their state to the disk: Kishu after each cell, this kernel after cells that are
``--interval`` seconds apart (by default as for a user). Kishu runs in a stock kernel, in its test
mode (which only leaves out saving the notebook through a browser, so it is a little faster than for
a user). Times are from one cell's request to the next cell's reply, less what stock ipykernel takes
for the same two cells: what a side does between the cells counts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from durable import WAIT_S, Session, megabytes
from harness import BenchError, Kernel, Spread, kernels, notebook
from report import Result, Scale, parser, run

from jupyter_timetravel import Client

CELLS = (
    "import numpy as np, pandas as pd\n"
    "from sklearn.ensemble import RandomForestClassifier\n"
    "rng = np.random.default_rng(0)",
    "a = rng.random({bytes} // 8)",
    "frame = pd.DataFrame({{'k': range(100_000), 'v': rng.random(100_000),\n"
    "    't': [f'row {{n}}' for n in range(100_000)]}})",
    "dicts = [{{'id': n, 'name': f'name {{n}}', 'value': n / 7}} for n in range(100_000)]",
    "xs = rng.random((2000, 20))\n"
    "forest = RandomForestClassifier(50, random_state=0).fit(xs, xs[:, 0] > 0.5)",
)
TRIVIAL, ALL, ONE, DICT = "x = 1", "a += 1", "a[{n}] += 1", "dicts[{n}]['value'] += 1"
INIT = "from kishu import init_kishu\ninit_kishu({notebook!r})"
HEAD = "print(_kishu._kishu_branch.get_head().commit_id)"
SHOW = "print(a[0], len(frame), dicts[0]['value'], len(forest.estimators_))"


_interval: float | None = None


def taken(kernel: Kernel, code: str) -> float:
    """Seconds from a cell's request to the next one's reply."""
    started = time.perf_counter()
    kernel.run(code)
    kernel.run("pass")
    return time.perf_counter() - started


class Side:
    """One kernel, what it has stored, and the times of its cells by their kind."""

    def __init__(self, kernel: Kernel, database: Path | None, ours: Session | None) -> None:
        self.kernel, self.database, self.ours = kernel, database, ours
        self.times: dict[str, list[float]] = {}
        self.added: dict[str, list[float]] = {}

    def images(self) -> int:
        """Bytes on the disk of exact processes; Kishu has no such thing."""
        return 0 if self.ours is None else self.ours.blocks("images")

    def stored(self) -> int:
        """Bytes on the disk of variables."""
        if self.ours is not None:
            return self.ours.blocks()
        assert self.database is not None
        files = self.database.parent.glob(self.database.name + "*")  # a journal too
        return sum(file.stat().st_blocks * 512 for file in files)

    def settle(self) -> None:
        """Wait until what has run is on the disk."""
        if self.ours is not None:
            client = self.ours.client
            self.ours.wait(client.list()[-1].number)

    def cell(self, kind: str, code: str) -> None:
        before = self.stored() if self.database or self.ours else 0
        self.times.setdefault(kind, []).append(taken(self.kernel, code))
        if self.database or self.ours:
            self.settle()
            self.added.setdefault(kind, []).append(self.stored() - before)


def compared(kind: str, sides: dict[str, Side]) -> Result:
    """What a cell takes more than in a stock kernel."""
    stock = Spread.of(sides["stock"].times[kind]).median
    ours, kishu = (
        Spread.of([value - stock for value in sides[name].times[kind]])
        for name in ("ours", "kishu")
    )
    text = f"{ours.median / kishu.median:.3f} x; stock takes {1000 * stock:.1f} ms"
    return Result("cells", f"{kind}, more than stock", ours, kishu, text, "0.1 x", "Kishu")


def grown(kind: str, sides: dict[str, Side]) -> Result:
    """What a cell adds on the disk, at most: the same state a second time adds nothing to ours."""
    ours, kishu = (max(sides[name].added[kind]) for name in ("ours", "kishu"))
    text = f"ours {megabytes(ours)}, Kishu {megabytes(kishu)}: {ours / max(kishu, 1):.3f} x"
    return Result("cells", f"{kind}, bytes", None, None, text, "0.1 x")


@contextmanager
def workload(size: int) -> Iterator[dict[str, Side]]:
    """The three kernels with the same variables, all of them on the disk."""
    os.environ["KISHU_PATH_ROOT"] = os.environ["JUPYTER_DATA_DIR"]
    os.environ["ENV_KISHU_TEST_MODE"] = "1"
    kishus = Path(os.environ["JUPYTER_DATA_DIR"], "kishu.ipynb")
    nbformat.write(nbformat.v4.new_notebook(), kishus)
    with (
        notebook(),
        kernels("stock", "kishu", "ours") as (stock, kishu, own),
        Client(own.client, timeout=WAIT_S) as client,
    ):
        client.config(durability="every")
        if _interval is not None:
            client.config(durability_interval=_interval)
        sides = {
            "stock": Side(stock, None, None),
            "kishu": Side(kishu, kishus.with_suffix(".kishudb"), None),
            "ours": Side(own, None, Session(own, client)),
        }
        kishu.run(INIT.format(notebook=str(kishus)))
        for side in sides.values():
            for code in CELLS:
                side.kernel.run(code.format(bytes=size))
            side.settle()
        yield sides


def trivial(scale: Scale) -> Iterator[Result]:
    """A cell that changes nothing to speak of, with all of it in memory."""
    with workload(scale.large) as sides:
        ours, kishu = (megabytes(sides[name].stored()) for name in ("ours", "kishu"))
        yield Result("cells", "all, the first time", None, None, f"ours {ours}, Kishu {kishu}")
        for _ in range(16):
            for side in sides.values():
                side.times.setdefault("trivial", []).append(taken(side.kernel, TRIVIAL))
        yield compared("trivial", sides)


def cells(scale: Scale) -> Iterator[Result]:
    """Cells that change little: what they take more than in a stock kernel, and add."""
    with workload(scale.large) as sides:
        for number in range(3):
            for kind, code in (("one dict", DICT), ("one item", ONE)):
                for side in sides.values():
                    side.cell(kind, code.format(n=1000 * number))
        for kind in ("one dict", "one item"):
            yield compared(kind, sides)
            yield grown(kind, sides)


def going_back(scale: Scale) -> Iterator[Result]:
    """A cell that adds one to the array, and back to before it."""
    with workload(scale.large) as sides:
        own, kishu, session = sides["ours"].kernel, sides["kishu"].kernel, sides["ours"].ours
        assert session is not None
        commit = kishu.run(HEAD).text.split()[-1]
        checkpoint = session.client.checkpoint(comment="here").number
        before = {name: side.kernel.run(SHOW).text for name, side in sides.items()}
        back: tuple[list[float], list[float]] = ([], [])
        for _ in range(2):
            for side in sides.values():
                side.cell("add one", ALL)
            started = time.perf_counter()
            session.client.restore(checkpoint)
            own.run("pass")
            back[0].append(time.perf_counter() - started)
            started = time.perf_counter()
            kishu.run(f"_kishu.checkout({commit!r}, skip_notebook=True)")
            kishu.run("pass")
            back[1].append(time.perf_counter() - started)
        for name in ("ours", "kishu"):
            if sides[name].kernel.run(SHOW).text != before[name]:
                raise BenchError(f"{name} did not come back as it was")
        yield compared("add one", sides)
        yield grown("add one", sides)
        ours, theirs = map(Spread.of, back)
        ratio = f"{ours.median / theirs.median:.4f} x"
        yield Result("going_back", "going back", ours, theirs, ratio, "0.1 x", "Kishu")
        own.run("a = frame = dicts = forest = None")
        started = time.perf_counter()
        session.client.bring(checkpoint, ["a", "frame", "dicts", "forest"])
        disk = Spread.of([time.perf_counter() - started])
        ratio = f"{disk.median / theirs.median:.4f} x"
        yield Result("going_back", "all from the disk", disk, theirs, ratio, "0.1 x", "Kishu")


def ten(scale: Scale) -> Iterator[Result]:
    """Ten cells in a row that each add one to the array: what is on the disk afterwards.

    Kishu writes the array after each. This kernel holds all ten states as long as it runs, and
    writes those that come ``durability_interval`` apart, and the last one.
    """
    with workload(scale.large) as sides:
        added, took = {}, {}
        images = sides["ours"].images()
        for name, side in sides.items():
            before = side.stored() if name != "stock" else 0
            started = time.perf_counter()
            for _ in range(10):
                side.kernel.run(ALL)
            side.kernel.run("pass")
            took[name] = time.perf_counter() - started
            if name != "stock":
                side.settle()
                added[name] = side.stored() - before
        ours, kishu = (took[name] - took["stock"] for name in ("ours", "kishu"))
        session = sides["ours"].ours
        assert session is not None
        written = sum(session.state(one.number) == "ready" for one in session.client.list()[-11:])
        text = f"ours {ours:.2f} s, Kishu {kishu:.2f} s more than stock: {ours / kishu:.3f} x"
        yield Result("ten", "ten times add one", None, None, text, "0.1 x")
        text = f"ours {megabytes(added['ours'])} ({written} written), "
        text += f"Kishu {megabytes(added['kishu'])}: {added['ours'] / added['kishu']:.3f} x"
        yield Result("ten", "ten times add one, bytes", None, None, text, "0.1 x")
        images = sides["ours"].images() - images
        text = f"{megabytes(images)}; with them {(added['ours'] + images) / added['kishu']:.3f} x"
        yield Result("ten", "… and of exact processes", None, None, text)


BENCHMARKS = {function.__name__: function for function in (trivial, cells, going_back, ten)}


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--kishu", required=True, metavar="PYTHON", help="that has Kishu")
    arguments.add_argument("--interval", type=float, help="seconds between two copies")
    Kernel.pythons["kishu"] = arguments.parse_args().kishu
    _interval = arguments.parse_args().interval
    sys.exit(run(arguments, BENCHMARKS))
