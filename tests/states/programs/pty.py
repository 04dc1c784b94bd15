"""A terminal of the process's own, with a line that was written to it."""

# named: terminal|pty|pts

# %% setup
import os
import pty
import tty

pty_master, pty_slave = pty.openpty()
tty.setraw(pty_slave)
os.write(pty_master, b"typed")

# %% check
assert os.isatty(pty_slave)
os.write(pty_master, b" more")
assert os.read(pty_slave, 99).endswith(b"more")
