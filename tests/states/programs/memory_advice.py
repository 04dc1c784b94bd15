"""Advice about memory, read-only pages, pages without access."""

# dmtcp: advice about huge pages is not given again

# %% setup
import ctypes
import mmap

advice_libc = ctypes.CDLL(None, use_errno=True)
advice_map = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
advice_map[:5] = b"huge?"
advice_map.madvise(mmap.MADV_HUGEPAGE)
advice_at = ctypes.addressof(ctypes.c_char.from_buffer(advice_map))
advice_libc.mprotect(ctypes.c_void_p(advice_at + 8192), ctypes.c_size_t(4096), 0)
advice_libc.mprotect(ctypes.c_void_p(advice_at + 16384), ctypes.c_size_t(4096), 1)


def advice_rows():
    rows = []
    for row in open("/proc/self/maps"):
        start = int(row.split("-")[0], 16)
        if advice_at <= start < advice_at + (32 << 10):
            rows.append((start - advice_at, row.split()[1]))
    return rows


def advice_flags():
    found = False
    for row in open("/proc/self/smaps"):
        if row.split("-")[0].strip() == f"{advice_at:x}":
            found = True
        if found and row.startswith("VmFlags:"):
            return "hg" in row.split()


advice_expected = advice_rows(), advice_flags()

# %% change
advice_libc.mprotect(ctypes.c_void_p(advice_at + 8192), ctypes.c_size_t(4096), 3)

# %% check
assert (advice_rows(), advice_flags()) == advice_expected
assert advice_map[:5] == b"huge?"
