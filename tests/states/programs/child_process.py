"""A child process, and a pipe to it."""

# named: child process

# %% setup
import subprocess

child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

# %% check
child.stdin.write(b"echo\n")
child.stdin.flush()
assert child.stdout.readline() == b"echo\n"
