"""A file that was deleted while it is open."""

# %% setup
import os

deleted_file = open("deleted.txt", "w+b")
deleted_file.write(b"only here")
deleted_file.flush()
os.unlink("deleted.txt")

# %% change
deleted_file.truncate(0)

# %% check
deleted_file.seek(0)
assert deleted_file.read() == b"only here"
deleted_file.write(b" and more")
deleted_file.flush()
