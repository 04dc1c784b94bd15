"""A lease of a file (in the workspace a capture, which reads it, would break the lease)."""

# named: lease

# %% setup
import fcntl
import tempfile

lease_file = tempfile.NamedTemporaryFile("w", dir="/tmp")
fcntl.fcntl(lease_file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

# %% check
assert fcntl.fcntl(lease_file, fcntl.F_GETLEASE) == fcntl.F_WRLCK
