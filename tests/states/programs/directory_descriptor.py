"""A descriptor of a directory, used to open below it."""

# %% setup
import os

os.mkdir("below")
with open("below/inner", "w") as directory_new:
    directory_new.write("inner")
directory_fd = os.open("below", os.O_RDONLY | os.O_DIRECTORY)

# %% check
directory_inner = os.open("inner", os.O_RDONLY, dir_fd=directory_fd)
assert os.read(directory_inner, 9) == b"inner"
os.close(directory_inner)
