"""A watch of inotify, after which a file is made."""

# named: inotify
# dmtcp: inotify_init(2) fails there

# %% setup
import ctypes
import os

inotify_libc = ctypes.CDLL(None)
os.mkdir("watched")
inotify = inotify_libc.inotify_init1(0o4000)
inotify_watch = inotify_libc.inotify_add_watch(inotify, b"watched", 0x100)

# %% check
open("watched/new", "w").close()
assert b"new" in os.read(inotify, 4096)
