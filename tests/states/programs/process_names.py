"""The ids of process and threads, the name of the process, its program, the host's name."""

# dmtcp: /proc/self/exe names the program that restarts

# %% setup
import ctypes
import os
import socket
import threading

names_ids = (os.getpid(), threading.get_native_id())
names_exe = os.readlink("/proc/self/exe")
names_host = socket.gethostname()
ctypes.CDLL(None).prctl(15, b"my-name", 0, 0, 0)

# %% change
ctypes.CDLL(None).prctl(15, b"other", 0, 0, 0)

# %% check
assert (os.getpid(), threading.get_native_id()) == names_ids
assert socket.gethostname() == names_host
assert open("/proc/self/comm").read() == "my-name\n"
assert os.readlink("/proc/self/exe") == names_exe
