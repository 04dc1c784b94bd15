"""Locks, events and queues: kept with what they hold and whether they are held.

Threads other than the main one do not come back, so neither do their waits and what they held,
as far as the object tells who holds it. (A plain Lock does not: it comes back as it was.)
"""

from __future__ import annotations

import contextvars
import re
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Final

from kernel_runtime.executor.namespace import main_thread
from kernel_runtime.executor.namespace.reducers.common import make, set_attributes
from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

_OWNER: Final = re.compile(r"owner=(\d+) count=(\d+)")


@reducer(type(threading.Lock()))
def reduce_lock(obj: Any, context: Context) -> Any:
    return make_lock, (obj.locked(),)


def make_lock(held: bool) -> Any:
    lock = threading.Lock()
    if held:
        lock.acquire()
    return lock


@reducer(type(threading.RLock()))
def reduce_rlock(obj: Any, context: Context) -> Any:
    found = _OWNER.search(repr(obj))
    owner, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if count and owner != threading.main_thread().ident:
        context.notice("an RLock was held by a thread that does not come back: it is free")
        count = 0
    return make_rlock, (count,)


def make_rlock(count: int) -> Any:
    """One that this thread holds ``count`` times: loading is done in the main thread."""
    lock = threading.RLock()
    for _ in range(count):
        lock.acquire()
    return lock


@reducer("threading.Condition")
def reduce_condition(obj: Any, context: Context) -> Any:
    """Its methods are those of its lock, so it is made again around the lock."""
    lock = obj._lock
    made = ("acquire", "release", "_release_save", "_acquire_restore", "_is_owned")
    state = {k: v for k, v in vars(obj).items() if k not in (*made, "_lock", "_waiters")}
    if obj._waiters:
        context.notice("threads that waited on it do not come back")
    return make_condition, (type(obj), lock), state, None, None, set_attributes


def make_condition(cls: Any, lock: Any) -> Any:
    condition = cls.__new__(cls)
    threading.Condition.__init__(condition, lock)
    return condition


@reducer("threading.Barrier")
def reduce_barrier(obj: Any, context: Context) -> Any:
    if obj._count:
        context.notice("threads that waited at it do not come back: nobody waits")
    state = {**vars(obj), "_count": 0, "_state": 0 if obj._state != -2 else -2}
    return make, (type(obj),), state, None, None, set_attributes


@reducer("queue.Queue", "queue.LifoQueue", "queue.PriorityQueue")
def reduce_queue(obj: Any, context: Context) -> Any:
    """With its entries; nobody waits and nobody is in the middle of putting."""
    fresh = ("mutex", "not_empty", "not_full", "all_tasks_done")
    state = {k: v for k, v in vars(obj).items() if k not in fresh}
    return make_queue, (type(obj),), state, None, None, set_attributes


def make_queue(cls: Any) -> Any:
    import queue

    made = cls.__new__(cls)
    queue.Queue.__init__(made)
    return made


@reducer("_queue.SimpleQueue")
def reduce_simple_queue(obj: Any, context: Context) -> Any:
    """Nothing shows its entries, so they are taken out and put back."""
    entries = []
    while not obj.empty():
        entries.append(obj.get_nowait())
    for entry in entries:
        obj.put(entry)
    return make, (type(obj),), entries, None, None, put_all


def put_all(queue: Any, entries: list[Any]) -> None:
    for entry in entries:
        queue.put(entry)


@reducer("asyncio.mixins._LoopBoundMixin")
def reduce_loop_bound(obj: Any, context: Context) -> Any:
    """asyncio's locks, events and queues: they find their loop again when they are used."""
    state = dict(vars(obj))
    state["_loop"] = None
    for name in ("_waiters", "_getters", "_putters"):
        waiting = state.get(name)
        if waiting:
            context.notice("tasks that waited on it do not come back")
        if isinstance(waiting, deque):
            state[name] = deque()
    return make, (type(obj),), state, None, None, set_attributes


@reducer("asyncio.futures.Future", "_asyncio.Future", "_asyncio.Task", "asyncio.tasks.Task")
def reduce_future(obj: Any, context: Context) -> Any:
    """One that is done is its outcome; a task that is done comes back as a future."""
    if not obj.done():
        raise NotKept("a task or future that is not done cannot be kept")
    if obj.cancelled():
        outcome: tuple[str, Any] = ("cancelled", None)
    elif (error := obj.exception()) is not None:
        outcome = ("error", error)
    else:
        outcome = ("result", obj.result())
    if hasattr(obj, "get_coro"):
        context.notice("a task that was done comes back as a future with its outcome")
    return make_future, (), outcome, None, None, set_outcome


def make_future() -> Any:
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()  # only its name is needed: the future is done
        loop.close()
    return asyncio.Future(loop=loop)


def set_outcome(future: Any, outcome: tuple[str, Any]) -> None:
    kind, value = outcome
    if kind == "cancelled":
        future.cancel()
    elif kind == "error":
        future.set_exception(value)
        future.exception()  # seen: nobody is told that it was never looked at
    else:
        future.set_result(value)


@reducer("asyncio.events.AbstractEventLoop")
def reduce_loop(obj: Any, context: Context) -> Any:
    if obj.is_running():
        return running_loop, ()
    raise NotKept("an event loop of its own cannot be kept")


def running_loop() -> Any:
    import asyncio

    return asyncio.get_event_loop()


@reducer("concurrent.futures._base.Future")
def reduce_concurrent_future(obj: Any, context: Context) -> Any:
    if not obj.done():
        raise NotKept("a future that is not done cannot be kept")
    state = {"_state": obj._state, "_result": obj._result, "_exception": obj._exception}
    return make_concurrent_future, (type(obj),), state, None, None, set_attributes


def make_concurrent_future(cls: Any) -> Any:
    import concurrent.futures

    future = cls.__new__(cls)
    concurrent.futures.Future.__init__(future)
    return future


@reducer("concurrent.futures.thread.ThreadPoolExecutor")
def reduce_thread_pool(obj: Any, context: Context) -> Any:
    if obj._shutdown:
        raise NotKept("an executor that was shut down cannot be kept")
    context.notice("an executor comes back new and empty: what waited or ran in it is gone")
    arguments = (obj._max_workers, obj._thread_name_prefix)
    return type(obj), arguments


@reducer("concurrent.futures.process.ProcessPoolExecutor")
def reduce_process_pool(obj: Any, context: Context) -> Any:
    if obj._shutdown_thread:
        raise NotKept("an executor that was shut down cannot be kept")
    context.notice("an executor comes back new and empty: what waited or ran in it is gone")
    return type(obj), (obj._max_workers,)


@reducer("_thread._local")
def reduce_local(obj: Any, context: Context) -> Any:
    """With what it holds for the main thread. A class of the user's may want arguments again."""
    if type(obj).__init__ is not object.__init__:
        raise NotKept("a threading.local with an __init__ cannot be kept: each thread calls it")
    values = main_thread.call(lambda: dict(vars(obj)))
    context.notice("a threading.local comes back with the main thread's values only")
    return make, (type(obj),), values, None, None, set_attributes


@reducer("_contextvars.ContextVar")
def reduce_context_var(obj: Any, context: Context) -> Any:
    """With its default, which an empty context shows, and its value where the cells run."""
    default: tuple[Any, ...] = ()
    with suppress(LookupError):
        default = (contextvars.Context().run(obj.get),)
    value = main_thread.call(lambda: _value_in(getattr(context.session, "context", None), obj))
    state = (value,) if value is not _NO_VALUE else ()
    return make_context_var, (obj.name, default), state, None, None, set_context_var


_NO_VALUE: Final = object()


def _value_in(context: contextvars.Context | None, variable: Any) -> Any:
    where = contextvars.copy_context() if context is None else context
    return where.get(variable, _NO_VALUE)


def make_context_var(name: str, default: tuple[Any, ...]) -> Any:
    if default:
        return contextvars.ContextVar(name, default=default[0])
    return contextvars.ContextVar(name)


def set_context_var(variable: Any, value: tuple[Any, ...]) -> None:
    """In the context that loading is done in."""
    if value:
        variable.set(value[0])
