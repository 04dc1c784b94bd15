"""A descriptor of the process itself (pidfd)."""

# named: pidfd
# dmtcp: pidfd_open(2) does not know the ids that processes have there
# apart: dmtcp

# %% setup
import os
import signal

own_pidfd = os.pidfd_open(os.getpid())

# %% check
signal.pidfd_send_signal(own_pidfd, 0)
