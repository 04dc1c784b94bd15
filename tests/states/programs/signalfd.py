"""A signalfd, whose signal is pending."""

# %% setup
import ctypes
import os
import signal
import threading

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 5})
signalfd_mask = ctypes.c_uint64(1 << (signal.SIGRTMIN + 5 - 1))
signalfd = ctypes.CDLL(None).signalfd(-1, ctypes.byref(signalfd_mask), 0o4000)
signal.pthread_kill(threading.main_thread().ident, signal.SIGRTMIN + 5)

# %% change
os.read(signalfd, 128)

# %% check
assert int.from_bytes(os.read(signalfd, 128)[:4], "little") == signal.SIGRTMIN + 5
