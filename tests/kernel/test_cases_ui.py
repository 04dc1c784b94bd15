"""The cases ``ui`` that need a kernel and no page; those with a page are in tests/browser."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jupyter_timetravel import Client
from tests.kernel.durable_world import namespace, stats

WHOLE = os.environ.get("TT_WHOLE") == "1"
WORDS, NESTED = (500_000, 2_000) if WHOLE else (50_000, 200)
"""A tenth of the case's: half a gigabyte takes minutes at low priority beside other tests."""

ODD = (
    f"words = [str(i) * 100 for i in range({WORDS})]; many = {NESTED}"
    + """
text = "x" * 200_000_000
nested = {i: {j: [0] * 10 for j in range(100)} for i in range(many)}
asked = []
class Lazy:
    def __len__(self): asked.append("len"); raise RuntimeError("no len")
    def __getattr__(self, n):
        asked.append(n); import time; time.sleep(2); raise AttributeError(n)
    def __repr__(self):
        asked.append("repr"); import os, time
        while not os.path.exists("go"): time.sleep(0.05)
        return "late"
import itertools; lz = Lazy(); inf = itertools.count()
"""
)
"""As the case has it, but for its size. The text of ``lz`` is there when the test says so."""

PATIENT = "--Supervisor.show_timeout=600"
PICKLES_ONLY = "--Supervisor.images=False"  # of what is on the disk


@pytest.fixture
def odd(start_notebook: Any, document: dict[str, Any]) -> Any:
    """A kernel in whose memory are large and odd variables."""
    notebook = start_notebook(PATIENT, PICKLES_ONLY, **document)
    notebook.run(ODD)
    assert notebook.head()["number"] == 1
    return notebook


def size_on_disk(notebook: Any, store: Path) -> int:
    """Bytes of the store, once the variables as they are now are on the disk."""
    made = notebook.run("%checkpoint --label kept").out
    number, end = int(made.split()[1].strip("#")), time.monotonic() + 400
    while True:
        capture = namespace(notebook.command("get", checkpoint=number)["checkpoint"])
        if capture["state"] in ("ready", "failed"):
            break
        assert time.monotonic() < end, "pickled at low priority, but not for ever"
        time.sleep(0.1)
    assert capture["state"] == "ready", capture
    return sum(512 * file.st_blocks for file in stats(store))


@pytest.fixture
def another(odd: Any) -> Iterator[Client]:
    """What a panel asks with, beside the notebook."""
    with Client.from_connection_file(odd.manager.connection_file, timeout=600) as client:
        yield client


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_11_what_did_not_change_is_not_written_again(odd: Any, tmp_path: Path) -> None:
    sizes = [size_on_disk(odd, tmp_path / "store")]
    for cells in (range(2, 10), range(10, 11), range(11, 12)):
        for number in cells:
            odd.run(f"t = {number}")
        sizes.append(size_on_disk(odd, tmp_path / "store"))
    growth = [after - before for before, after in pairwise(sizes)]
    assert max(growth) < 1_000_000, growth  # also for the eight cells together
    assert odd.run("print(asked, next(inf))", store_history=False).out == "[] 0"


@pytest.mark.slow
def test_11_no_cell_asks_a_variable_for_anything(odd: Any, another: Client) -> None:
    """Cells do not wait for what a page looks at, and looking runs nothing in the live session."""
    for number in range(2, 12):  # nobody looks
        odd.run(f"t = {number}")
    summary = odd.command("get", checkpoint=odd.head()["number"])["variables"]
    assert summary["lz"]["type"] == "Lazy" and summary["lz"]["value"] is None
    assert summary["inf"]["type"] == "count" and summary["inf"]["value"] is None
    with ThreadPoolExecutor(1) as looking:
        shown = looking.submit(another.show, 1, "lz")
        try:
            for number in range(12, 22):  # somebody waits for the text of lz all the time
                odd.run(f"t = {number}")
                head = odd.head()["number"]
                changed = odd.command("diff", a=head - 1, b=head)["variables"]
                assert [one["name"] for one in changed["changed"]] == ["t"]
            assert not shown.done()
        finally:
            (odd.cwd / "go").touch()
        (lazy,) = shown.result(timeout=110)
    assert lazy.data["text/plain"] == "late"
    assert odd.run("print(asked, next(inf), t)", store_history=False).out == "[] 0 21"


def test_11_an_interrupt_while_the_checkpoint_is_made_hits_no_cell(odd: Any) -> None:
    for number in range(2, 32):
        odd.run(f"t = {number}")
        for _ in range(number % 3 + 1):  # the cell has ended: its checkpoint is being made
            odd.interrupt()
        cell = odd.run("print(t)", ok=False)
        assert (cell.status, cell.out) == ("ok", str(number)), cell.error
    assert odd.run("print(asked, len(words), next(inf))").out == f"[] {WORDS} 0"
