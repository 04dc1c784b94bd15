"""pyarrow, whose pools of threads have run."""

# needs: pyarrow

# %% setup
import pyarrow as pa
import pyarrow.compute as pc

pa_table = pa.table({"k": [i % 5 for i in range(50_000)], "v": list(range(50_000))})
pa_before = pa_table.group_by("k").aggregate([("v", "sum")]).sort_by("k").to_pydict()

# %% check
assert pa_table.group_by("k").aggregate([("v", "sum")]).sort_by("k").to_pydict() == pa_before
assert pc.sum(pa_table["v"]).as_py() == sum(range(50_000))
