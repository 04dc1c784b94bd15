"""polars, whose pool of threads has run."""

# needs: polars

# %% setup
import polars as pl

pl_frame = pl.DataFrame({"k": [i % 7 for i in range(100_000)], "v": range(100_000)})


def pl_totals():
    return pl_frame.group_by("k").agg(pl.col("v").sum()).sort("k")["v"].to_list()


pl_before = pl_totals()

# %% change
pl_frame = pl_frame.head(0)

# %% check
assert pl_totals() == pl_before
