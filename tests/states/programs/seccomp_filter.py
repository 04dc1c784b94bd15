"""A filter of system calls that the process has given itself (seccomp)."""

# named: filter
# last

# %% setup
import ctypes
import os
import struct

filtered_libc = ctypes.CDLL(None, use_errno=True)
filtered_number = 136 if os.uname().machine == "x86_64" else 1 << 20  # ustat, which nobody calls
filtered_program = ctypes.create_string_buffer(
    struct.pack("HBBI", 0x20, 0, 0, 0)
    + struct.pack("HBBI", 0x15, 0, 1, filtered_number)
    + struct.pack("HBBI", 6, 0, 0, 0x50000 | 99)
    + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
)
filtered_head = ctypes.create_string_buffer(
    struct.pack("HxxxxxxQ", 4, ctypes.addressof(filtered_program))
)
filtered_libc.prctl(38, 1, 0, 0, 0)
assert filtered_libc.prctl(22, 2, filtered_head, 0, 0) == 0

# %% check
filtered_libc.syscall(filtered_number, 0, 0)
assert ctypes.get_errno() == 99
