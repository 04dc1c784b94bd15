"""Environment variables, also as C sees them."""

# %% setup
import ctypes
import os

os.environ["TT_STATE"] = "set"
environ_get = ctypes.CDLL(None).getenv
environ_get.restype = ctypes.c_char_p

# %% change
os.environ["TT_STATE"] = "changed"

# %% check
assert os.environ["TT_STATE"] == "set" and environ_get(b"TT_STATE") == b"set"
