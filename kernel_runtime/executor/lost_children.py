"""What a woken process believes of children that are gone: made to fail fast, or to start anew.

Child processes are not part of a checkpoint of the fork engine. Libraries that own some would
wait for ever, or invent an exit code: subprocess says 0 when waitpid(2) finds no such child.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from os import waitid  # user code may replace what is in os
from pathlib import Path
from typing import Any

from kernel_runtime.executor.holders import told

Notes = list[list[str]]
Holders = Callable[[Sequence[object]], list[list[str]]]
Owners = list[tuple[object, int, str]]
"""Object, pid, what it is called."""

_WALL = 0x40000000
"""Children of every kind, those of clone(2) without a signal too (wait(2), __WALL)."""

KILLED = -9
"""The exit code that a lost child is given: it was killed when the session was restored."""


def children() -> list[int]:
    """Return the pids of this process's children, of all of its threads (proc(5), "children")."""
    found: list[int] = []
    try:
        # one call where there is none, which is how it is at nearly every checkpoint
        waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return found
    for tid in os.listdir("/proc/self/task"):
        try:
            # not by open(), which user code may have replaced
            found += map(int, Path(f"/proc/self/task/{tid}/children").read_text().split())
        except OSError:  # a thread that ended meanwhile
            continue
    return found


def mend(lost: list[int], holders: Holders) -> Notes:
    """Make everything that owns one of the lost children know it; return a note for each.

    holders: finds the variables that hold the owners.
    """
    if not lost:
        return []
    # one pass over all objects: it takes a while in a large session, but only where there is cause
    everything = gc.get_objects()
    owners = [*_popen_objects(lost, everything), *_multiprocessing(lost, everything)]
    # before what follows lets other threads run: a pool's own throws its dead workers away
    names = holders([owner for owner, _, _ in owners])
    _fork_server(lost)
    _loky()
    _resource_trackers(lost, everything)
    return [
        ["child process", str(pid), text + told(held)]
        for (_, pid, text), held in zip(owners, names)
    ]


def _is(one: Any, kind: type) -> bool:
    """isinstance() asks the object itself, too: a weak proxy raises, others run user code."""
    return issubclass(type(one), kind)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In the place of a method whose time is over."""


def _popen_objects(lost: list[int], everything: list[Any]) -> Owners:
    subprocess = sys.modules.get("subprocess")
    if subprocess is None:
        return []
    owners: Owners = []
    for popen in everything:
        if _is(popen, subprocess.Popen) and popen.returncode is None and popen.pid in lost:
            text = (
                f"Process {popen.pid} ({popen.args!r}) was not brought back by the restore: child "
                "processes are not part of a checkpoint. Start it again."
            )

            def gone(*args: Any, _text: str = text, **kwargs: Any) -> Any:
                raise ChildProcessError(_text)

            popen.returncode = KILLED
            popen.wait = popen.communicate = gone
            # a thread that waits for it in waitpid(2) is told of no such child, and would set 0
            popen._handle_exitstatus = _nothing
            owners.append((popen, popen.pid, f"{popen.args!r}"))
    return owners


def _multiprocessing(lost: list[int], everything: list[Any]) -> Owners:
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return []
    owners: Owners = []
    for child in list(process._children):
        popen = getattr(child, "_popen", None)
        if popen is not None and popen.returncode is None and popen.pid in lost:
            popen.returncode = KILLED
            owners.append((child, popen.pid, child.name))
    pool = sys.modules.get("multiprocessing.pool")
    if pool is not None:
        for one in everything:
            if _is(one, pool.Pool):
                _free_pool_locks(one)
    return owners


def _free_pool_locks(pool: Any) -> None:
    """An idle worker waits for work with the queue's lock held: the lock died with it.

    The pool's own thread replaces workers that ended; the new ones must be able to take it.
    """
    for queue, name in ((pool._inqueue, "_rlock"), (pool._outqueue, "_wlock")):
        lock = getattr(queue, name, None)
        if lock is not None and lock._semlock._is_zero():
            lock._semlock.release()


def _fork_server(lost: list[int]) -> None:
    """Let the next process be started by a new server: waitpid(2) for the old one raises."""
    module = sys.modules.get("multiprocessing.forkserver")
    server = getattr(module, "_forkserver", None)
    if server is None or server._forkserver_pid not in lost:
        return
    fd = server._forkserver_alive_fd
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None
    if hasattr(server, "_forkserver_authkey"):  # Python 3.14
        server._forkserver_authkey = None
    os.close(fd)


def _loky() -> None:
    """joblib keeps one executor for all calls: let the next call make a new one."""
    reusable: Any = sys.modules.get("joblib.externals.loky.reusable_executor") or sys.modules.get(
        "loky.reusable_executor"
    )
    if reusable is not None and reusable._executor is not None:
        reusable._executor = reusable._executor_kwargs = None


def _resource_trackers(lost: list[int], everything: list[Any]) -> None:
    """Let new trackers be started without a warning, knowing what the old ones knew."""
    for name in (
        "multiprocessing.resource_tracker",
        "joblib.externals.loky.backend.resource_tracker",
        "loky.backend.resource_tracker",
    ):
        module = sys.modules.get(name)
        tracker = getattr(module, "_resource_tracker", None)
        if tracker is None or tracker._pid not in lost:
            continue
        fd, tracker._fd, tracker._pid = tracker._fd, None, None
        if fd is not None:
            os.close(fd)
        for resource, kind in _tracked(name, everything):
            tracker.register(resource, kind)


def _tracked(tracker: str, everything: list[Any]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if tracker == "multiprocessing.resource_tracker":
        shared = sys.modules.get("multiprocessing.shared_memory")
        if shared is not None:
            found += [
                (o._name, "shared_memory")
                for o in everything
                if _is(o, shared.SharedMemory) and getattr(o, "_track", True)
            ]
        kind, module = "semaphore", sys.modules.get("multiprocessing.synchronize")
    else:
        kind = "semlock"
        module = sys.modules.get(tracker.replace("resource_tracker", "synchronize"))
    if module is not None:
        found += [
            (o._semlock.name, kind)
            for o in everything
            if _is(o, module.SemLock) and o._semlock.name
        ]
    return found
