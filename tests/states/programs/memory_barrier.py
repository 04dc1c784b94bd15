"""Expedited barriers (membarrier(2)), and whether others may look into it (PR_SET_DUMPABLE)."""

# named: dumpable|barriers

# %% setup
import ctypes
import os

barrier_libc = ctypes.CDLL(None)
barrier_number = 324 if os.uname().machine == "x86_64" else 283
assert barrier_libc.syscall(barrier_number, 1 << 4, 0, 0) == 0
barrier_libc.prctl(4, 0, 0, 0, 0)
assert barrier_libc.prctl(3, 0, 0, 0, 0) == 0

# %% change
barrier_libc.prctl(4, 1, 0, 0, 0)

# %% check
barrier_dumpable = barrier_libc.prctl(3, 0, 0, 0, 0)
barrier_libc.prctl(4, 1, 0, 0, 0)
assert barrier_libc.syscall(barrier_number, 1 << 3, 0, 0) == 0
assert barrier_dumpable == 0
