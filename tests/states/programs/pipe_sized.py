"""A pipe that was made larger, one of packets, and bytes put into one by splice(2)."""

# dmtcp: F_SETPIPE_SZ fails there
# apart: dmtcp

# %% setup
import fcntl
import os

sized_read, sized_write = os.pipe()
fcntl.fcntl(sized_write, fcntl.F_SETPIPE_SZ, 1 << 18)
sized_source = os.open("/proc/self/exe", os.O_RDONLY)
sized_bytes = os.splice(sized_source, sized_write, 4096, offset_src=0)
sized_expected = os.pread(sized_source, sized_bytes, 0)
os.set_blocking(sized_write, False)
sized_filled = os.write(sized_write, b"f" * (1 << 17))
packets_read, packets_write = os.pipe2(os.O_DIRECT)
os.write(packets_write, b"one")
os.write(packets_write, b"two")

# %% change
os.read(sized_read, 100)
os.read(packets_read, 100)

# %% check
assert fcntl.fcntl(sized_read, fcntl.F_GETPIPE_SZ) == 1 << 18
assert os.read(sized_read, sized_bytes) == sized_expected
sized_left = sized_filled
while sized_left:
    sized_got = os.read(sized_read, sized_left)
    assert set(sized_got) == {ord("f")}
    sized_left -= len(sized_got)
assert [os.read(packets_read, 99) for _ in range(2)] == [b"one", b"two"]
