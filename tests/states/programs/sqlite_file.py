"""A database of sqlite in a file, in the middle of a transaction."""

# %% setup
import sqlite3

sqlite_file = sqlite3.connect("state.db")
sqlite_file.execute("create table t (n integer)")
sqlite_file.execute("insert into t values (1)")
sqlite_file.commit()
sqlite_file.execute("insert into t values (2)")

# %% change
sqlite_file.rollback()

# %% check
sqlite_file.commit()
assert sqlite_file.execute("select n from t").fetchall() == [(1,), (2,)]
sqlite_another = sqlite3.connect("state.db")
assert sqlite_another.execute("select n from t").fetchall() == [(1,), (2,)]
sqlite_another.close()
