"""``functools.lru_cache``: with its entries, their order, and its counts.

The C object shows nothing of these, but the garbage collector may ask it what it refers to. They
are put in by calling the new one, while the function has a code that gives the kept
results (and that raises, for calls whose entries are gone: those count as misses too).
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator
from typing import Any, Final

from kernel_runtime.executor.namespace.reducers.common import is_importable
from kernel_runtime.executor.namespace.registry import Context, reducer

MOST_CALLS: Final = 1_000_000
"""Counts beyond it are not brought back: each is a call."""

Entry = tuple[tuple[Any, ...], dict[str, Any], Any]
_SCALARS: Final = (int, str)
_MARK: Final = "jupyter_timetravel: the function that gives the kept results"


@reducer(functools._lru_cache_wrapper)
def reduce_lru_cache(obj: Any, context: Context) -> Any:
    if is_importable(obj):
        return NotImplemented
    function = obj.__wrapped__
    how = obj.cache_parameters()
    info = obj.cache_info()
    entries = _entries(obj, function, typed=how["typed"])
    if entries is None and info.currsize:
        context.notice("cache emptied: what it holds cannot be read")
    attributes = {
        k: v for k, v in vars(obj).items() if k not in ("cache_parameters", "__wrapped__")
    }
    counts = (info.hits, info.misses) if entries is not None else (0, 0)
    state = (attributes, entries or [], counts)
    return make_lru_cache, (function, how["maxsize"], how["typed"]), state, None, None, fill


def _entries(cache: Any, function: Any, *, typed: bool) -> list[Entry] | None:
    """Oldest first. None: they cannot be told, or could not be put in again."""
    if type(function) is not types.FunctionType:
        return None
    held = gc.get_referents(cache)
    try:
        at = next(i for i, each in enumerate(held) if each is function)
    except StopIteration:
        return None
    table, mark = held[at - 1], held[at + 1]
    if type(table) is not dict or len(table) != cache.cache_info().currsize:
        return None
    pairs: list[tuple[Any, Any]]
    if cache.cache_parameters()["maxsize"] is None:
        pairs = list(table.items())
    else:
        linked = held[1 : at - 1]
        if len(linked) != 3 * len(table):  # key, result, the type of the link
            return None
        pairs = list(zip(linked[::3], linked[1::3]))
        keys = {id(key) for key in table}
        if any(id(key) not in keys for key, _ in pairs):
            return None
    return [(*_arguments(key, mark, typed=typed), result) for key, result in pairs]


def _arguments(key: Any, mark: Any, *, typed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that made a key, as lru_cache_make_key in Modules/_functoolsmodule.c builds it."""
    if type(key) in _SCALARS:
        return (key,), {}
    count = next((i for i, each in enumerate(key) if each is mark), None)
    if count is None:
        return (key[: len(key) // 2] if typed else key), {}
    rest = key[count + 1 :]
    named = (len(rest) - count) // 3 if typed else len(rest) // 2
    return key[:count], dict(zip(rest[: 2 * named : 2], rest[1 : 2 * named : 2]))


def make_lru_cache(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def fill(cache: Any, state: tuple[dict[str, Any], list[Entry], tuple[int, int]]) -> None:
    attributes, entries, (hits, misses) = state
    vars(cache).update(attributes)
    if not entries:
        return
    function = cache.__wrapped__
    results: Iterator[Any] = iter([entry[2] for entry in entries])
    code = function.__code__
    gone = misses - len(entries)
    gone = gone if 0 < gone <= MOST_CALLS else 0
    function.__code__ = _giving(results, gone, len(code.co_freevars))
    try:
        for _ in range(gone):
            _missed(cache)
        for arguments, named, _ in entries:
            cache(*arguments, **named)
        arguments, named, _ = entries[-1]
        for _ in range(hits if hits <= MOST_CALLS else 0):
            cache(*arguments, **named)  # the newest one: the order stays
    finally:
        function.__code__ = code


class _Gone(Exception):
    """A call whose entry is gone."""


def _missed(cache: Any) -> None:
    try:
        cache()
    except _Gone:
        return


def _giving(results: Iterator[Any], missing: int, free_variables: int) -> types.CodeType:
    """The code of a function that takes anything: it raises ``missing`` times, then gives results.

    A function's code may be exchanged for one with as many free variables only.
    """
    left = missing

    def give() -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            raise _Gone
        return next(results)

    names = [f"v{index}" for index in range(free_variables)]
    made = " = ".join([*names, "None"])
    used = ", ".join([*names, "None"])
    source = (
        f"def outer():\n {made}\n def inner(*a, **k):\n  if 0: {used}\n"
        f"  give = {_MARK!r}\n  return give()\n return inner\n"
    )
    space: dict[str, Any] = {}
    exec(source, space)
    code: types.CodeType = space["outer"]().__code__
    constants: tuple[Any, ...] = tuple(give if each == _MARK else each for each in code.co_consts)
    return code.replace(co_consts=constants)
