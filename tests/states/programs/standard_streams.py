"""Where C's standard output goes, and a second descriptor of it."""

# %% setup
import os

streams_kept = os.dup(1)

# %% check
assert os.fstat(streams_kept).st_ino == os.fstat(1).st_ino
