"""Settings of prctl(2): timer slack, child subreaper."""

# named: timer slack

# %% setup
import ctypes

settings_prctl = ctypes.CDLL(None).prctl
settings_prctl(29, 123456, 0, 0, 0)
settings_prctl(36, 1, 0, 0, 0)

# %% change
settings_prctl(29, 50000, 0, 0, 0)

# %% check
settings_reaper = ctypes.c_int()
settings_prctl(37, ctypes.byref(settings_reaper), 0, 0, 0)
assert (settings_prctl(30, 0, 0, 0, 0), settings_reaper.value) == (123456, 1)
