"""A file that is written, with a line that is still in Python's buffer."""

# %% setup
buffered_file = open("buffered.txt", "w")
buffered_file.write("on the disk, ")
buffered_file.flush()
buffered_file.write("in the buffer")

# %% change
buffered_file.write(", and lost")
buffered_file.flush()

# %% check
buffered_file.flush()
assert open("buffered.txt").read() == "on the disk, in the buffer"
