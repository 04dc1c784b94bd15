"""A file that is read, at its offset."""

# %% setup
with open("offset.txt", "w") as file_new:
    file_new.write("one\ntwo\nthree\n")
file_read = open("offset.txt")
file_line = file_read.readline()

# %% change
file_read.read()

# %% check
assert file_read.readline() == "two\n" and file_read.fileno() > 2
