"""Guard pages within memory (MADV_GUARD_INSTALL, Linux 6.13)."""

# apart: dmtcp

# %% setup
import ctypes
import os

guard_libc = ctypes.CDLL(None)
guard_libc.mmap.restype = ctypes.c_void_p
guard_libc.write.restype = ctypes.c_ssize_t
guard_memory = guard_libc.mmap(None, ctypes.c_size_t(32768), 3, 0x22, -1, ctypes.c_long(0))
ctypes.memset(guard_memory, 7, 32768)
guard_page = ctypes.c_void_p(guard_memory + 8192)
guard_known = guard_libc.madvise(guard_page, ctypes.c_size_t(8192), 102) == 0


def guard_readable():
    ends = os.pipe()
    guard_found = [
        guard_libc.write(ends[1], ctypes.c_void_p(guard_memory + guard_at), ctypes.c_size_t(1)) == 1
        for guard_at in (0, 8192, 12288, 16384)
    ]
    [os.close(end) for end in ends]
    return guard_found


# %% change
guard_libc.madvise(guard_page, ctypes.c_size_t(8192), 103)

# %% check
assert guard_readable() == [True, not guard_known, not guard_known, True]
