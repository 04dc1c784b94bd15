"""A context of asynchronous input and output (io_setup)."""

# named: aio|asynchronous
# apart: dmtcp

# %% setup
import ctypes
import os

aio_libc = ctypes.CDLL(None)
aio_libc.syscall.restype = ctypes.c_long
aio_numbers = (206, 208) if os.uname().machine == "x86_64" else (0, 4)
aio_id = ctypes.c_ulong()
assert aio_libc.syscall(aio_numbers[0], 16, ctypes.byref(aio_id)) == 0

# %% check
aio_events = ctypes.create_string_buffer(64)
aio_wait = (ctypes.c_long * 2)(0, 0)
assert aio_libc.syscall(aio_numbers[1], aio_id, 0, 1, aio_events, aio_wait) == 0
