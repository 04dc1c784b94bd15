"""A file that has no name yet (O_TMPFILE), and is given one after the restore."""

# named: file without a name
# apart: dmtcp

# %% setup
import os

unnamed_path = os.path.abspath("unnamed-now-named.txt")
unnamed_fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(unnamed_fd, b"first")

# %% change
os.write(unnamed_fd, b" second")

# %% check
os.write(unnamed_fd, b" third")
# a directory is given so that Python follows the link (linkat with AT_SYMLINK_FOLLOW)
os.link(f"/proc/self/fd/{unnamed_fd}", unnamed_path, src_dir_fd=unnamed_fd)
unnamed_found = (open(unnamed_path, "rb").read(), oct(os.stat(unnamed_path).st_mode & 0o777))
assert unnamed_found == (b"first third", "0o640"), unnamed_found
os.unlink(unnamed_path)
