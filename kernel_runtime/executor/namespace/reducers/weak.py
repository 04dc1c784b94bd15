"""Weak references: alive if what they refer to is also kept, else dead: it dies after loading."""

from __future__ import annotations

import weakref
from typing import Any

from kernel_runtime.executor.namespace.reducers.common import set_attributes
from kernel_runtime.executor.namespace.registry import Context, reducer


class _Passing:
    """Something to refer to that is gone at once."""


@reducer(weakref.ref)
def reduce_ref(obj: Any, context: Context) -> Any:
    referent = obj()
    callback = getattr(obj, "__callback__", None)
    if referent is None:
        return make_dead, (type(obj),)
    if isinstance(obj, weakref.WeakMethod):
        return weakref.WeakMethod, (referent,)
    arguments = (referent,) if callback is None else (referent, callback)
    return type(obj), arguments, vars(obj) if hasattr(obj, "__dict__") else None


def make_dead(cls: Any) -> Any:
    if issubclass(cls, weakref.WeakMethod):
        return cls(_Method().method)
    return weakref.ref.__new__(cls, _Passing())


class _Method(_Passing):
    def method(self) -> None: ...


@reducer(weakref.ProxyType, weakref.CallableProxyType)
def reduce_proxy(obj: Any, context: Context) -> Any:
    """Everything that is asked of a proxy goes to the object: a bound method of it has it."""
    try:
        referent = obj.__init__.__self__
    except ReferenceError:
        return make_dead_proxy, ()
    return weakref.proxy, (referent,)


def make_dead_proxy() -> Any:
    return weakref.proxy(_Passing())


@reducer("weakref.WeakValueDictionary", "weakref.WeakKeyDictionary")
def reduce_weak_dictionary(obj: Any, context: Context) -> Any:
    own = ("data", "_remove", "_pending_removals", "_iterating", "_dirty_len")
    attributes = {k: v for k, v in vars(obj).items() if k not in own}
    return make_weak, (type(obj),), (attributes, list(obj.items())), None, None, fill_dictionary


@reducer("_weakrefset.WeakSet")
def reduce_weak_set(obj: Any, context: Context) -> Any:
    own = ("data", "_remove", "_pending_removals", "_iterating")
    attributes = {k: v for k, v in vars(obj).items() if k not in own}
    return make_weak, (type(obj),), (attributes, list(obj)), None, None, fill_set


def make_weak(cls: Any) -> Any:
    """Empty: the class of ours may have an ``__init__`` of its own."""
    made = cls.__new__(cls)
    for base in cls.__mro__:
        if base.__module__ in ("weakref", "_weakrefset"):
            base.__init__(made)
            break
    return made


def fill_dictionary(obj: Any, state: tuple[dict[str, Any], list[tuple[Any, Any]]]) -> None:
    attributes, entries = state
    set_attributes(obj, attributes)
    for key, value in entries:
        obj[key] = value


def fill_set(obj: Any, state: tuple[dict[str, Any], list[Any]]) -> None:
    attributes, members = state
    set_attributes(obj, attributes)
    for member in members:
        obj.add(member)


@reducer("weakref.finalize")
def reduce_finalize(obj: Any, context: Context) -> Any:
    what = obj.peek()
    if what is None:
        return make_dead_finalizer, ()
    referent, function, arguments, named = what
    return make_finalizer, (referent, function, arguments, named, obj.atexit)


def make_finalizer(referent: Any, function: Any, arguments: Any, named: Any, atexit: bool) -> Any:
    made = weakref.finalize(referent, function, *arguments, **named)
    made.atexit = atexit
    return made


def make_dead_finalizer() -> Any:
    made = weakref.finalize(_Method(), len, ())
    made.detach()
    return made
