"""Memory whose protection can no longer be changed (mseal, Linux 6.10), and memory with a name."""

# named: seal of memory

# %% setup
import ctypes
import mmap

sealed_libc = ctypes.CDLL(None, use_errno=True)
sealed_memory = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sealed_memory[:6] = b"sealed"
sealed_at = ctypes.addressof(ctypes.c_char.from_buffer(sealed_memory))
sealed_done = sealed_libc.syscall(462, ctypes.c_void_p(sealed_at), ctypes.c_size_t(8192), 0) == 0
sealed_named = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sealed_named[:1] = b"x"
sealed_name_at = ctypes.addressof(ctypes.c_char.from_buffer(sealed_named))


def sealed_names():
    return "[anon:tt-states-name]" in open("/proc/self/maps").read()


sealed_libc.prctl(
    0x53564D41,
    ctypes.c_ulong(0),
    ctypes.c_ulong(sealed_name_at),
    ctypes.c_ulong(1 << 20),
    b"tt-states-name",
)
sealed_has_name = sealed_names()

# %% check
assert sealed_memory[:6] == b"sealed"
sealed_protect = sealed_libc.mprotect(ctypes.c_void_p(sealed_at), ctypes.c_size_t(4096), 1)
assert not sealed_done or sealed_protect != 0
assert sealed_names() == sealed_has_name
