"""The frames that a caught exception holds."""

# %% setup
import sys


def exception_raise():
    local = "still here"
    raise ValueError(local)


try:
    exception_raise()
except ValueError:
    exception_trace = sys.exc_info()[2]

# %% check
assert exception_trace.tb_next.tb_frame.f_locals["local"] == "still here"
