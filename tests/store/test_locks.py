"""The locks of timelines, where a process has several threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from kernel_runtime.store import locks

LOOK = """
import sys
from pathlib import Path
from kernel_runtime.store import locks
print(all(locks.is_held(Path(path)) for path in sys.argv[1:]))
"""


def test_a_look_of_another_thread_drops_no_lock(tmp_path: Path) -> None:
    """Whoever closes a descriptor of a file drops the process' lock on it (POSIX)."""
    stop = threading.Event()
    paths = [tmp_path / f"{n}.lock" for n in range(300)]
    for path in paths:
        path.touch()
    now = paths[0]

    def look() -> None:
        while not stop.is_set():
            locks.is_held(now)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for now in paths:
            assert locks.acquire(now)
    finally:
        stop.set()
        thread.join()
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, paths)], capture_output=True, text=True, check=True
    )
    for path in paths:
        locks.release(path)
    assert done.stdout.strip() == "True"
