"""A timerfd that ticks."""

# named: timerfd

# %% setup
import ctypes
import os


class TimerfdSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


timerfd_libc = ctypes.CDLL(None)
timerfd = timerfd_libc.timerfd_create(1, 0)
timerfd_libc.timerfd_settime(timerfd, 0, ctypes.byref(TimerfdSpec(0, 10**7, 0, 10**7)), None)

# %% check
assert int.from_bytes(os.read(timerfd, 8), "little") >= 1
