"""A lock that belongs to an open file, not to the process (F_OFD_SETLK)."""

# named: lock

# %% setup
import fcntl
import struct

ofd_file = open("ofd", "w")
ofd_range = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 3, 7, 0)
fcntl.fcntl(ofd_file, 37, ofd_range)

# %% check
ofd_other = open("ofd", "r+")
ofd_found = fcntl.fcntl(ofd_other, 36, ofd_range)
assert struct.unpack("hhqqi4x", ofd_found)[:4] == (fcntl.F_WRLCK, 0, 3, 7)
