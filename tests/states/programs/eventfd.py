"""An eventfd with its count, and one that is a semaphore."""

# %% setup
import ctypes
import os

eventfd_make = ctypes.CDLL(None).eventfd
eventfd_count = eventfd_make(5, 0)
eventfd_semaphore = eventfd_make(3, 1)

# %% change
os.read(eventfd_count, 8)

# %% check
assert int.from_bytes(os.read(eventfd_count, 8), "little") == 5
assert int.from_bytes(os.read(eventfd_semaphore, 8), "little") == 1
