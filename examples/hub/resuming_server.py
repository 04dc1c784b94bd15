"""A user's server whose timelines live in object storage: pulled before it starts, then pushed.

    c.Spawner.cmd = ["python3", "/opt/resuming_server.py", "jupyterhub-singleuser"]

It runs where the user's files are, as the user, so it works with every spawner. TIMETRAVEL_REMOTE
names the storage; each user has a folder there. Credentials and keys: docs/hub.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

REMOTE = f"{os.environ['TIMETRAVEL_REMOTE'].rstrip('/')}/{os.environ['JUPYTERHUB_USER']}"
EMPTY = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def timetravel(*words: str) -> dict[str, Any]:
    """What a command answers. Raises CalledProcessError; its message is in the server's log."""
    command = [Path(sys.executable).with_name("jupyter-timetravel"), *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def there() -> list[dict[str, Any]]:
    """The timelines in the storage, the last one that was pushed first."""
    if REMOTE.startswith("file://"):  # a folder of which there is none before the first push
        Path(REMOTE.removeprefix("file://")).mkdir(mode=0o700, parents=True, exist_ok=True)
    found: list[dict[str, Any]] = timetravel("remote", "list", REMOTE)["timelines"]
    return sorted(found, key=lambda one: str(one["pushed_at"]), reverse=True)


def pull() -> dict[str, str]:
    """Bring back the notebooks that are not here, each where it stood; which timeline is whose."""
    taken = {}
    for one in there():
        notebook = Path.home() / one["notebook"]
        if notebook.exists():
            continue  # it is still here, or a later one was taken
        notebook.write_text(EMPTY)  # so that there is one to be given the timeline
        try:
            timetravel("pull", REMOTE, one["id"], "--as", str(notebook))
        finally:
            notebook.unlink()
        # its files now, the notebook among them; its variables when its kernel starts
        timetravel("restore", str(notebook), "-1")
        taken[str(notebook.resolve())] = one["id"]
    return taken


def push(taken: dict[str, str]) -> None:
    """Send what is new, and take out what was pulled: all of that is in it too."""
    if not any(one["checkpoints"] for one in timetravel("sessions")["sessions"]):
        return
    for one in timetravel("push", REMOTE)["sessions"]:
        if one["notebook"] in taken:
            timetravel("remote", "delete", REMOTE, taken[one["notebook"]], "--yes")


def main() -> int:
    """Returns the server's exit status."""
    taken = pull()
    server = subprocess.Popen(sys.argv[1:])

    def stop(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()  # again and again, while it is being pushed, does no harm

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    status = server.wait()
    push(taken)
    return status


if __name__ == "__main__":
    sys.exit(main())
