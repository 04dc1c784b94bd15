"""A descriptor that sends a signal when it can be read (O_ASYNC)."""

# named: O_ASYNC
# dmtcp: F_SETOWN does not know the ids that processes have there
# apart: dmtcp

# %% setup
import fcntl
import os
import signal
import socket

sigio_calls = []
signal.signal(signal.SIGIO, lambda number, frame: sigio_calls.append(number))
sigio_pair = socket.socketpair()
fcntl.fcntl(sigio_pair[0], fcntl.F_SETOWN, os.getpid())
sigio_flags = fcntl.fcntl(sigio_pair[0], fcntl.F_GETFL)
fcntl.fcntl(sigio_pair[0], fcntl.F_SETFL, sigio_flags | os.O_ASYNC)

# %% check
sigio_pair[1].send(b"x")
assert sigio_calls == [signal.SIGIO]
