"""Put right what a woken process cannot know by itself: it is the same process at another time.

Each mend is small, guarded (a failure costs only itself) and touches a module only if it is loaded.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel

Notes = list[list[str]]


def children() -> list[int]:
    """Return the pids of this process's children, of all of its threads (proc(5), "children")."""
    found: list[int] = []
    for tid in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{tid}/children") as f:
                found += map(int, f.read().split())
        except OSError:  # a thread that ended meanwhile
            continue
    return found


def mend(kernel: ExecutorKernel, *, ids_kept: bool, lost: list[int]) -> Notes:
    """Apply all mends; return notes [kind, subject, detail] on what the user should know.

    lost: the children that the process had when it was frozen.
    """
    notes: Notes = []
    steps: list[tuple[str, Callable[[], Notes]]] = [
        ("random generators", lambda: _diverge()),
        ("history", lambda: _new_history_session(kernel)),
        ("processes", lambda: _lost_processes(lost)),
    ]
    if not ids_kept:
        steps.append(("ids", lambda: _new_ids(kernel)))
    for name, step in steps:
        try:
            notes += step()
        except Exception as error:  # a mend must never cost the restore
            notes.append(["not mended", name, f"{type(error).__name__}: {error}"])
    return notes


def _diverge() -> Notes:
    """What must be unique must not repeat: two processes woken from one share all of memory.

    numpy's and random's streams go on exactly; OpenSSL's generator and temporary names must not.
    uuid and secrets ask the kernel each time.
    """
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    return []


def _new_history_session(kernel: ExecutorKernel) -> Notes:
    """The lines that follow have numbers that the left branch has already written."""
    manager = kernel.shell.history_manager
    if manager is not None and manager.enabled:
        manager.new_session()
    return []


def _lost_processes(lost: list[int]) -> Notes:
    """Children of the process that was frozen are gone; make waiting for them say so.

    Popen would invent exit code 0 when waitpid(2) finds no such child.
    """
    notes: Notes = []
    if not lost:
        return notes
    subprocess = sys.modules.get("subprocess")
    if subprocess is not None:
        for popen in gc.get_objects():
            if isinstance(popen, subprocess.Popen) and popen.returncode is None and popen.pid in lost:
                _mark_lost(popen)
                notes.append(["child process", str(popen.pid), f"not brought back: {popen.args!r}"])
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        for child in list(process._children):
            popen = getattr(child, "_popen", None)
            if popen is not None and popen.returncode is None and popen.pid in lost:
                popen.returncode = -9
                notes.append(["child process", str(popen.pid), f"not brought back: {child.name}"])
    return notes


def _mark_lost(popen: Any) -> None:
    text = (
        f"Process {popen.pid} ({popen.args!r}) was not brought back by the restore: "
        "child processes are not part of a checkpoint. Start it again."
    )

    def lost(*args: Any, **kwargs: Any) -> Any:
        raise ChildProcessError(text)

    popen.returncode = -9
    popen.wait = popen.communicate = lost


def _new_ids(kernel: ExecutorKernel) -> Notes:
    """Without the old ids: put right what remembers one."""
    kernel.session.pid = os.getpid()
    for thread in threading.enumerate():
        if thread is threading.main_thread():
            thread._native_id = threading.get_native_id()  # type: ignore[attr-defined]
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        for child in list(process._children):
            child._parent_pid = os.getpid()
    return [["ids", "process", f"the process has a new id ({os.getpid()}); so have its threads"]]
