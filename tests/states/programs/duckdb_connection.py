"""duckdb in memory, with its threads, in the middle of a transaction and a result."""

# needs: duckdb

# %% setup
import duckdb

duck = duckdb.connect(":memory:")
duck.execute("create table t as select range as n from range(100000)")
duck.execute("begin")
duck.execute("insert into t values (-1)")
duck_rows = duck.cursor().execute("select * from range(50000)")
duck_first = duck_rows.fetchmany(10)

# %% change
duck.execute("delete from t")

# %% check
assert duck_rows.fetchone() == (10,)
assert duck.execute("select count(*) from t").fetchone() == (100001,)
duck.execute("rollback")
assert duck.execute("select sum(n), count(*) from t").fetchone() == (4999950000, 100000)
