"""A database of sqlite in memory, in the middle of a transaction and of a query."""

# %% setup
import sqlite3

sqlite_memory = sqlite3.connect(":memory:")
sqlite_memory.execute("create table t (n integer)")
sqlite_memory.executemany("insert into t values (?)", [(n,) for n in range(10)])
sqlite_memory.commit()
sqlite_memory.execute("insert into t values (99)")
sqlite_cursor = sqlite_memory.execute("select n from t order by n")
sqlite_first = sqlite_cursor.fetchone()

# %% change
sqlite_memory.execute("delete from t")

# %% check
assert sqlite_cursor.fetchone() == (1,)
sqlite_cursor.close()
assert sqlite_memory.execute("select count(*) from t").fetchone() == (11,)
sqlite_memory.rollback()
assert sqlite_memory.execute("select count(*) from t").fetchone() == (10,)
