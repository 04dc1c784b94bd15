"""Where C's standard output goes, and a second descriptor of it."""

# named: the same open file

# %% setup
import os

streams_kept = os.dup(1)

# %% check
assert os.fstat(streams_kept).st_ino == os.fstat(1).st_ino
