"""What a session set in libraries is set again; the user's own modules keep their data."""

from __future__ import annotations

from pathlib import Path

import pytest
from namespace_harness import dump, load


def test_case_10_settings_that_live_in_libraries(tmp_path: Path) -> None:
    for name in ("numpy", "pandas", "matplotlib", "polars", "sklearn"):
        pytest.importorskip(name)
    dumped = dump(
        tmp_path,
        """
import random, os, sys, decimal, logging, warnings, locale, socket, builtins, json, signal
import numpy as np, pandas as pd, polars as pl, sklearn, matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt
random.seed(1); np.random.seed(1); random.random(); np.random.rand()
pd.set_option("display.max_rows", 7); np.set_printoptions(precision=2)
plt.rcParams["figure.dpi"] = 55
os.makedirs("sub", exist_ok=True); os.environ["TT_X"] = "1"; os.environ.pop("TT_GONE", None)
os.chdir("sub"); sys.path.insert(0, "/tmp/mylib")
decimal.getcontext().prec = 5; sys.setrecursionlimit(5000)
logging.getLogger("app").setLevel("DEBUG")
warnings.filterwarnings("ignore", message="zz")
np.seterr(divide="raise"); pl.Config.set_tbl_rows(3); sklearn.set_config(print_changed_only=False)
socket.setdefaulttimeout(7); builtins.everywhere = 12; json.patched = lambda: 3
sys.argv[:] = ["a", "b"]
signal.signal(signal.SIGUSR1, lambda *a: None)
""",
        "print(random.random(), np.random.rand())",
        dumps=2,
    )
    before, after = dumped
    assert before.lost == {} == after.lost

    came = load(
        tmp_path,
        before,
        "print(random.random(), np.random.rand())",
        """
print(pd.get_option("display.max_rows"), np.get_printoptions()["precision"])
print(plt.rcParams["figure.dpi"], decimal.getcontext().prec, sys.getrecursionlimit())
print(os.environ.get("TT_X"), os.path.basename(os.getcwd()), "/tmp/mylib" in sys.path)
print(logging.getLogger("app").level, any("zz" in str(f[1]) for f in warnings.filters))
""",
        """
print(np.geterr()["divide"], pl.Config.state()["POLARS_FMT_MAX_ROWS"])
print(sklearn.get_config()["print_changed_only"])
print(socket.getdefaulttimeout(), everywhere, json.patched(), sys.argv)
print(matplotlib.get_backend().lower())
""",
        before=("import os; os.environ['TT_GONE'] = '1'", "os.environ['DISPLAY'] = ':9'"),
    )

    assert came.printed == [
        after.printed[1],
        "7 2\n55.0 5 5000\n1 sub True\n10 True\n",
        "raise 3\nFalse\n7.0 12 3 ['a', 'b']\nagg\n",
    ]
    assert came.notices == [
        ["signals", "the handler of SIGUSR1 is not set again: set it in a cell"]
    ]


HELPER = """
RATE = 1
count = 0
table = {"a": 1}
class Acc:
    def fee(self): return 10 * RATE
def bump():
    global count
    count += 1
    return count
running = (i for i in "ab")
"""


def test_case_17_a_helper_module_keeps_its_data_and_tells_of_a_changed_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    dumped = dump(
        tmp_path,
        """
import sys; sys.path.insert(0, "")
import helper; from helper import bump
helper.bump(); helper.bump(); helper.RATE = 2; acc = helper.Acc(); helper.added = lambda: 5
table = helper.table
""",
    )
    assert dumped.lost == {}
    assert [name for name, _ in dumped.manifest["notices"]] == ["module:helper.running"]
    check = (
        "print(acc.fee(), bump(), helper.count, helper.RATE, isinstance(acc, helper.Acc))\n"
        "print(helper.bump is bump, helper.added(), helper.table is table)"
    )

    came = load(tmp_path, dumped, check)
    (tmp_path / "helper.py").write_text(HELPER + "# edited\n")
    edited = load(tmp_path, dumped, check)

    assert came.printed == edited.printed == ["20 3 3 2 True\nTrue 5 True\n"]
    assert not [text for name, text in came.notices if name == "helper"]
    (text,) = [text for name, text in edited.notices if name == "helper"]
    assert "helper.py differs from the one that this state was made with" in text


def test_a_setting_that_cannot_be_applied_is_named_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    dumped = dump(tmp_path, "import os, random; os.chdir('sub'); random.seed(3)\nx = [1]")
    (tmp_path / "sub").rmdir()

    came = load(
        tmp_path, dumped, "a = random.random(); random.seed(3); print(x, a == random.random())"
    )

    assert came.printed == ["[1] True\n"]
    ((name, text),) = came.notices
    assert name == "cwd" and "cannot be entered" in text
