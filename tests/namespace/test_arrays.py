"""numpy arrays in all their layouts, views of them, and memoryviews."""

from __future__ import annotations

from pathlib import Path

import pytest
from namespace_harness import dump, load

pytest.importorskip("numpy")

ARRAYS = """
import array, numpy as np
r = np.random.default_rng(0)
arrays = {
    "C": r.random((50, 40)), "F": np.asfortranarray(r.random((50, 40))),
    "permuted": r.random((3, 4, 5)).transpose(1, 2, 0) + 1, "zero-d": np.array(5.5),
    "empty": np.zeros((0, 3)), "large": r.random((300, 300)), "bool": r.random(9) > .5,
    "dates": np.array(["2020-01-01", "NaT"], "M8[D]"), "text": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]), "big-endian": np.arange(5, dtype=">i4"),
    "structured": np.array([(1, "x"), (2, "y")], [("n", "i4"), ("s", "U3")]),
    "aligned": np.zeros(3, np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "complex": np.array([1 + 2j]), "wide": np.arange(3, dtype="longdouble"),
    "frozen": np.arange(3),
    "strings": np.array(["x", "longer than a few bytes" * 9], np.dtypes.StringDType())
    if np.__version__ >= "2" else 0,
}
arrays["frozen"].flags.writeable = False
large_F = np.asfortranarray(r.random((200, 300))); column = large_F[:, 7]
corner = large_F[::-2, ::3]
grid = np.arange(24.0).reshape(2, 3, 4); flipped = grid[::-1, ..., ::-2]
field = arrays["structured"]["n"]
wide = np.broadcast_to(np.arange(3), (4, 3)); as_int = grid.view("i8")
diag = np.diagonal(np.eye(4))
none = grid[:, :0]
shared = [1]; objects = np.array([shared, "x", None, shared], object); some = objects[1:3]
cyclic = np.empty(1, object); cyclic[0] = cyclic
raw = bytearray(b"0123456789ab"); over = np.frombuffer(raw, "i4", offset=4); text = b"const"
over_text = np.frombuffer(text, "u1")[1:]
mat = np.matrix([[1, 2], [3, 4]]); row = mat[0]
masked = np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=9); part = masked[1:]
rec = np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
class Tagged(np.ndarray): pass
tagged = np.arange(4).view(Tagged); tagged.tag = shared
mv = memoryview(grid); mv_part = memoryview(raw)[2:6]; mv_col = memoryview(grid)[::1]
ints = array.array("i", [1, 2, 3]); mv_ints = memoryview(ints)[1:]
mv_cast = memoryview(raw).cast("i"); mv_read = memoryview(b"xyz")[1:]; gone = memoryview(b"q")
gone.release()
np.arange(20, dtype="i4").tofile("map.bin")
mapped = np.memmap("map.bin", "i4", "r+", shape=(4, 5)); map_row = mapped[1]
scalar = np.float32(1.5); dt = np.dtype("f8"); add = np.add; gen = np.random.default_rng(3)
"""

CHECKS = (
    """
def told(a):
    flags = [a.flags[f] for f in ("WRITEABLE", "C_CONTIGUOUS", "F_CONTIGUOUS", "OWNDATA")]
    return [type(a).__name__, a.dtype.str, a.shape, a.strides, flags, repr(a.tolist())[:200]]
for name, a in arrays.items(): print(name, told(a))
for a in (large_F, column, corner, grid, flipped, field, wide, as_int, diag, none): print(told(a))
for a in (over, over_text, rec, tagged): print(told(a))
""",
    """
large_F[:, 7] = 1; print(column.sum(), corner.base is large_F)
grid[1, 0, 3] = -5; print(flipped[0, 0, 0], mv[1, 0, 3], as_int[1, 0, 3] != 0, mv_col.shape)
arrays["structured"]["n"] = 9; print(field)
objects[1] = "new"
print(some, objects[0] is objects[3] is shared, tagged.tag is shared, cyclic[0] is cyclic)
raw[4] = 65
print(over[0], bytes(mv_part), over.base is not None, mv_cast[1], bytes(mv_read), mv_read.readonly)
ints[1] = 7; print(mv_ints.tolist(), mv_ints.format)
""",
    """
mat[0, 0] = 8; print(type(row).__name__, row)
masked[2] = 50; print(masked, part, part.fill_value, type(part).__name__); print(rec.a, rec.b)
mapped[1, 2] = 99; print(map_row, type(mapped).__name__, mapped.mode)
try: gone.tolist()
except ValueError: print("released")
print(scalar, dt is np.dtype("f8"), add is np.add, gen.random())
""",
)


def test_layouts_and_sharing(tmp_path: Path) -> None:
    """Every check prints what it prints in the session."""
    there = dump(tmp_path, ARRAYS, *CHECKS)
    assert [text for text in there.printed if "Traceback" in text] == []
    dumped = dump(tmp_path, ARRAYS)
    assert dumped.lost == {}
    assert [name for name, _ in dumped.manifest["notices"]] == ["mapped"]
    came = load(tmp_path, dumped, *CHECKS)
    assert came.lost == {}
    for seen, expected in zip(came.printed, there.printed[1:]):
        assert seen.splitlines() == expected.splitlines()


def test_frames_share_and_copy_on_write(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    cells = """
import numpy as np, pandas as pd
df = pd.DataFrame({"a": np.arange(5.0), "b": list("vwxyz"), "c": pd.Categorical(list("xyxyx"))})
df["d"] = pd.date_range("2020", periods=5, tz="UTC"); df["e"] = pd.array([1, None, 3, 4, 5])
same = {"frame": df}; part = df[["a", "b"]]; col = df["a"]; idx = df.set_index("b")
multi = df.set_index(["b", "c"])
when = pd.DatetimeIndex(df["d"]); grouped = df.groupby("c", observed=True)
stamp = pd.Timestamp("2020"); na = pd.NA
as_index = pd.Index(col)
"""
    checks = """
print(same["frame"] is df, df.dtypes.astype(str).tolist(), df.shape, na is pd.NA, stamp.year)
df.loc[0, "a"] = 50
print(part["a"].tolist(), col.tolist(), as_index.tolist(), same["frame"]["a"].tolist())
col[1] = -1; print(df["a"].tolist(), as_index.tolist(), idx.loc["w", "a"], multi.index.names)
print(when[0], grouped["a"].sum().tolist())
"""
    there = dump(tmp_path, cells, checks)
    dumped = dump(tmp_path, cells)
    came = load(tmp_path, dumped, checks)
    assert dumped.lost == came.lost == {}
    assert "Traceback" not in there.printed[1]
    assert came.printed == [there.printed[1]]
