"""Memory that is not inherited by a fork (MADV_DONTFORK)."""

# named: DONTFORK

# %% setup
import mmap

dontfork_map = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
dontfork_map[:4] = b"mine"
dontfork_map.madvise(mmap.MADV_DONTFORK)

# %% check
assert dontfork_map[:4] == b"mine"
