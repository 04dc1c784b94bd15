"""The working directory and the umask."""

# last

# %% setup
import os

os.makedirs("deep/down", exist_ok=True)
cwd_start = os.getcwd()
os.chdir("deep/down")
cwd_umask = os.umask(0o027)

# %% change
os.chdir("/")
os.umask(0)

# %% check
assert os.getcwd() == os.path.join(cwd_start, "deep/down")
assert os.umask(0o022) == 0o027
os.chdir(cwd_start)
