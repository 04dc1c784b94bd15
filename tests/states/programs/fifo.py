"""A named pipe, open at both ends, with data in it."""

# %% setup
import os

os.mkfifo("fifo")
fifo_end = os.open("fifo", os.O_RDWR | os.O_NONBLOCK)
os.write(fifo_end, b"in the fifo")

# %% change
os.read(fifo_end, 99)

# %% check
assert os.read(fifo_end, 99) == b"in the fifo"
