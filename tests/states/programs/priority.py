"""The nice value, and the processors that it may run on."""

# named: nice value

# %% setup
import os

os.nice(3)
priority_nice = os.nice(0)
priority_cpus = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, priority_cpus)

# %% change
os.nice(1)

# %% check
assert (os.nice(0), os.sched_getaffinity(0)) == (priority_nice, priority_cpus)
