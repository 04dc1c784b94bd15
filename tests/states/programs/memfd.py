"""A memfd, with its contents and seals."""

# named: memfd

# %% setup
import fcntl
import os

memfd = os.memfd_create("state", os.MFD_ALLOW_SEALING)
os.write(memfd, b"memory")
fcntl.fcntl(memfd, 1033, 0x0002)  # F_ADD_SEALS, F_SEAL_SHRINK

# %% change
os.pwrite(memfd, b"M", 0)

# %% check
assert os.pread(memfd, 99, 0) == b"memory"
assert fcntl.fcntl(memfd, 1034) == 0x0002
