"""A pipe with data in it."""

# %% setup
import os

pipe_read, pipe_write = os.pipe()
os.write(pipe_write, b"in the pipe")

# %% change
os.read(pipe_read, 99)

# %% check
os.write(pipe_write, b", more")
assert os.read(pipe_read, 99) == b"in the pipe, more"
