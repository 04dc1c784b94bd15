"""Put right what a woken process cannot know by itself: it is the same process at another time.

Each mend is small, guarded (a failure costs only itself) and touches a module only if it is loaded.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel_runtime.executor import lost_children
from kernel_runtime.executor.history import HistoryManager
from kernel_runtime.executor.holders import holders

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel

Notes = list[list[str]]

UNDISTURBED_S = 10.0
"""The switch interval at a freeze: in a woken process other Python threads, which may find out that
a child is gone, do not ask for the interpreter before the first mend is done."""


def mend(kernel: ExecutorKernel, *, ids_kept: bool, lost: list[int]) -> Notes:
    """Apply all mends; return notes [kind, subject, detail] on what the user should know.

    lost: the children that the process had when it was frozen.
    """
    notes: Notes = []
    steps: list[tuple[str, Callable[[], Notes]]] = [
        # before other threads, which may wait for one of them, get the interpreter
        ("child processes", lambda: lost_children.mend(lost, _holders(kernel))),
        ("random generators", _diverge),
        ("temporary directory", _temporary_directory),
        ("history", lambda: _history(kernel)),
    ]
    if not ids_kept:
        # first, before any other Python thread gets the interpreter and compares ids
        steps.insert(0, ("ids", lambda: _new_ids(kernel)))
    for name, step in steps:
        try:
            notes += step()
        except Exception as error:  # a mend must never cost the restore
            notes.append(["not mended", name, f"{type(error).__name__}: {error}"])
    return notes


def _holders(kernel: ExecutorKernel) -> lost_children.Holders:
    shell = kernel.shell
    assert shell is not None
    return lambda owners: holders(shell.user_ns, shell.user_ns_hidden, owners)


def prepare() -> None:
    """Do at the start what would cost each woken process time: OpenSSL reads its settings once."""
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)


def _diverge() -> Notes:
    """What must be unique must not repeat: two processes woken from one share all of memory.

    numpy's and random's streams go on exactly; OpenSSL's generator and temporary names must not.
    uuid and secrets ask the kernel each time.
    """
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
    return []


def _temporary_directory() -> Notes:
    """multiprocessing keeps sockets in one, in /tmp mostly; a process deletes it when it ends."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        config = process.current_process()._config
        directory = config.get("tempdir")
        if directory is not None and not os.path.isdir(directory):
            del config["tempdir"]  # another is made when it is needed
    return []


def _history(kernel: ExecutorKernel) -> Notes:
    """Its lines go under a session number of their own: the left branch has used the next ones."""
    manager = kernel.shell.history_manager if kernel.shell is not None else None
    if isinstance(manager, HistoryManager):
        manager.woken()
    return []


def _new_ids(kernel: ExecutorKernel) -> Notes:
    """Without the old ids: put right what remembers one."""
    assert kernel.session is not None
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        for child in list(process._children):
            child._parent_pid = os.getpid()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        for finalizer in list(util._finalizer_registry.values()):
            finalizer._pid = os.getpid()  # else Pool.terminate() does nothing
    kernel.session.pid = os.getpid()
    threading.main_thread()._native_id = threading.get_native_id()  # type: ignore[attr-defined]
    _keep_loops_running(kernel)
    return [["ids", "process", f"the process has a new id ({os.getpid()}); so have its threads"]]


def _keep_loops_running(kernel: ExecutorKernel) -> None:
    """Until Python 3.13 asyncio takes a running loop for none when getpid() has changed."""
    mine = kernel.io_loop.asyncio_loop  # type: ignore[attr-defined]
    asyncio._set_running_loop(mine)
    for loop in gc.get_objects():
        # isinstance() asks the object itself, too: a weak proxy whose object is gone raises
        ours = issubclass(type(loop), asyncio.BaseEventLoop)
        if ours and loop is not mine and loop.is_running():
            # first of all: what is ready already may ask which loop runs
            loop._ready.appendleft(asyncio.Handle(asyncio._set_running_loop, (loop,), loop))
            loop._write_to_self()
