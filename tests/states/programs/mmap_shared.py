"""Shared memory without a name, and a file that is mapped."""

# %% setup
import mmap

mmap_anonymous = mmap.mmap(-1, 8192)
mmap_anonymous[:4] = b"anon"
with open("mapped.bin", "wb") as mmap_new:
    mmap_new.write(b"\0" * 8192)
mmap_file = open("mapped.bin", "r+b")
mmap_mapped = mmap.mmap(mmap_file.fileno(), 0)
mmap_mapped[:4] = b"file"
mmap_mapped.flush()

# %% change
mmap_anonymous[:4] = b"gone"

# %% check
assert mmap_anonymous[:4] == b"anon" and mmap_mapped[:4] == b"file"
mmap_mapped[:4] = b"more"
mmap_mapped.flush()
assert open("mapped.bin", "rb").read(4) == b"more"
