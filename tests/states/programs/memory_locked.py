"""Memory that is locked."""

# named: mlock

# %% setup
import ctypes

mlock_buffer = ctypes.create_string_buffer(8192)
mlock_done = ctypes.CDLL(None).mlock(mlock_buffer, 8192)

# %% change
ctypes.CDLL(None).munlockall()

# %% check
import re

assert mlock_done == 0
assert int(re.search(r"VmLck:\s*(\d+)", open("/proc/self/status").read())[1]) >= 8
