"""Containers whose Jupyter server is gone: taken up again by their notebook, or removed.

A server that is killed takes its kernels along where they are its children; a container is not. It
keeps the session until the same notebook is opened again, for a limited time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jupyter_timetravel.containers.daemon import Daemon, Found
from kernel_runtime.process_names import is_alive, this_process

SEEN: Final = "seen"
"""A file in the runtime directory whose time says when a server last looked after the container."""


def look_after(runtime: Path) -> None:
    """Note that a server is there."""
    (runtime / SEEN).touch()


def find(daemon: Daemon, wanted: Mapping[str, str], image: str) -> Found | None:
    """A container without a server that holds this notebook's session; it is this server's from now
    on, and no other one finds it. One that is paused goes on."""
    if not wanted.get("notebook"):
        return None
    for found in daemon.ours():
        same = all(found.labels.get(key) == value for key, value in wanted.items())
        if (
            same
            and found.lives
            # one that was started from a commit says what that was made of
            and found.labels.get("base", found.image) == image
            and not is_alive(found.labels.get("server", ""))
            and Path(found.labels.get("runtime", "/nonexistent"), SEEN).exists()
            and _claim(Path(found.labels["runtime"]))
        ):
            if found.paused:
                daemon.resume(found.id)
            return found
    return None


def sweep(daemon: Daemon, runtimes: Path, hours: float) -> list[str]:
    """Remove what killed servers have left; returns the ids of the containers removed.

    Ended containers go at once, those that run or are paused when nobody has looked after them for
    that long. What they have checkpointed stays in the store.
    """
    removed = []
    kept = set()
    for found in daemon.ours():
        runtime = Path(found.labels.get("runtime", "/nonexistent"))
        # a label says for ever who made it; a probe has no directory
        owner = _owner(runtime)
        has_server = is_alive(found.labels.get("server", "") if owner is None else owner)
        if has_server or (found.lives and _age_hours(runtime) < hours):
            kept.add(runtime)
            continue
        daemon.remove(found.id)
        removed.append(found.id)
    # the second: where the paths of sockets would have been too long
    others = Path("/tmp").glob(f"timetravel-c-{os.getuid()}-*")
    for runtime in (*runtimes.glob("timetravel-c-*"), *others):
        if runtime not in kept and not is_alive(_owner(runtime) or ""):
            shutil.rmtree(runtime, ignore_errors=True)
    return removed


def own(runtime: Path) -> None:
    """Note in a runtime directory which server has it."""
    (runtime / "server").write_text(this_process(), "utf-8")


def give_up(runtime: Path) -> None:
    """Its container is nobody's any more: the next sweep removes it, though it may run."""
    (runtime / "server").write_text("", "utf-8")
    (runtime / SEEN).unlink(missing_ok=True)


def _claim(runtime: Path) -> bool:
    """Own it, unless a server that lives does. Of several at once one gets it."""
    import fcntl  # not on Windows, where this module must import too

    try:
        with open(runtime / "server", "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_alive(file.read()):
                return False
            file.seek(0)
            file.truncate()
            file.write(this_process())
            file.flush()
            return True
    except OSError:
        return False


def _owner(runtime: Path) -> str | None:
    try:
        return (runtime / "server").read_text("utf-8")
    except OSError:
        return None


def _age_hours(runtime: Path) -> float:
    try:
        return (time.time() - os.stat(runtime / SEEN).st_mtime) / 3600
    except OSError:
        return float("inf")
