"""Locks of files: flock and lockf."""

# named: lock

# %% setup
import fcntl
import subprocess
import sys

lock_files = [open(f"lock{n}", "w") for n in range(2)]
fcntl.flock(lock_files[0], fcntl.LOCK_EX)
fcntl.lockf(lock_files[1], fcntl.LOCK_EX, 10, 5)
lock_try = (
    "import fcntl, sys\n"
    "for n, call in enumerate((fcntl.flock, fcntl.lockf)):\n"
    "    try:\n"
    "        call(open(f'lock{n}', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "        print('free', end=' ')\n"
    "    except OSError:\n"
    "        print('held', end=' ')\n"
)
lock_held = subprocess.run([sys.executable, "-c", lock_try], capture_output=True, text=True).stdout

# %% check
lock_now = subprocess.run([sys.executable, "-c", lock_try], capture_output=True, text=True).stdout
assert lock_held == lock_now == "held held ", lock_now
