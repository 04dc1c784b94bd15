"""The policy of scheduling, and the priority at the disk."""

# named: policy of scheduling|priority at the disk

# %% setup
import ctypes
import os

scheduling_libc = ctypes.CDLL(None)
scheduling_set, scheduling_get = (251, 252) if os.uname().machine == "x86_64" else (30, 31)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
scheduling_libc.syscall(scheduling_set, 1, 0, 2 << 13 | 6)

# %% change
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
scheduling_libc.syscall(scheduling_set, 1, 0, 2 << 13 | 3)

# %% check
scheduling_now = os.sched_getscheduler(0)
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
assert scheduling_now == os.SCHED_BATCH
assert scheduling_libc.syscall(scheduling_get, 1, 0) == 2 << 13 | 6
