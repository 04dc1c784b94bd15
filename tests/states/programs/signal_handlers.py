"""Handlers of signals, Python's and those of C."""

# named: SIGUSR2
# apart: dmtcp

# %% setup
import os
import signal

handler_calls = []
signal.signal(signal.SIGUSR2, lambda number, frame: handler_calls.append(number))
signal.signal(signal.SIGURG, signal.SIG_IGN)

# %% change
signal.signal(signal.SIGUSR2, signal.SIG_DFL)

# %% check
os.kill(os.getpid(), signal.SIGURG)
os.kill(os.getpid(), signal.SIGUSR2)
assert handler_calls == [signal.SIGUSR2]
