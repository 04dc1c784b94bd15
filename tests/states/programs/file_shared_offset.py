"""Two descriptors that share one offset, and flags."""

# named: the same open file

# %% setup
import fcntl
import os

shared_first = os.open("shared.txt", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(shared_first, b"0123456789")
shared_second = os.dup(shared_first)
os.lseek(shared_first, 3, os.SEEK_SET)

# %% change
os.lseek(shared_first, 0, os.SEEK_SET)

# %% check
assert os.read(shared_second, 2) == b"34" and os.read(shared_first, 2) == b"56"
assert fcntl.fcntl(shared_second, fcntl.F_GETFL) & os.O_APPEND
