"""Keys of the process and of its thread, and a session keyring of its own: keyrings(7)."""

# named: keyring

# %% setup
import ctypes
import os

keys_libc = ctypes.CDLL(None)
keys_libc.syscall.restype = ctypes.c_long
keys_add, keys_control = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
keys_rings = {"thread": -1, "process": -2}
keys_here = {}
for keys_name, keys_ring in keys_rings.items():
    keys_here[keys_name] = keys_libc.syscall(
        keys_add, b"user", b"tt-states", b"secret", ctypes.c_size_t(6), keys_ring
    )

# %% check
for keys_name, keys_ring in keys_rings.items():
    if keys_here[keys_name] > 0:
        keys_found = keys_libc.syscall(keys_control, 10, keys_ring, b"user", b"tt-states", 0)
        assert keys_found > 0, keys_name
