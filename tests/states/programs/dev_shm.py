"""Files in /dev/shm, open, mapped, and as multiprocessing names them."""

# %% setup
import mmap
import os
from multiprocessing import shared_memory

dev_shm_path = f"/dev/shm/tt-states-{os.getpid()}"
dev_shm_file = open(dev_shm_path, "w+b")
dev_shm_file.write(b"a" * 4096)
dev_shm_file.flush()
dev_shm_map = mmap.mmap(dev_shm_file.fileno(), 4096)
dev_shm_block = shared_memory.SharedMemory(create=True, size=100, name=f"tt-states-b{os.getpid()}")
dev_shm_block.buf[:5] = b"block"

# %% change
dev_shm_map[:4] = b"zzzz"
dev_shm_block.buf[:5] = b"other"

# %% check
assert dev_shm_map[:4] == b"aaaa" and bytes(dev_shm_block.buf[:5]) == b"block"
dev_shm_map[:1] = b"b"
assert open(dev_shm_path, "rb").read(2) == b"ba"
dev_shm_again = shared_memory.SharedMemory(name=dev_shm_block.name)
assert bytes(dev_shm_again.buf[:5]) == b"block"
dev_shm_again.close()
dev_shm_block.unlink()
os.unlink(dev_shm_path)
