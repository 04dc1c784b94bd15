"""Iterators of the standard library that pickle no longer knows, or never did.

Python 3.14 took pickling out of itertools. What an iterator holds is then read with
``gc.get_referents``, which lists the fields of the C object in a fixed order; one with a hidden
position (``islice``, ``cycle``, ``product`` and the like) cannot be kept there.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from typing import Any, Final

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

PICKLED_BY_ITSELF: Final = sys.version_info < (3, 14)
# whether pairwise keeps the tuple that it gave last
PAIR_IS_HELD: Final = any(type(each) is tuple for each in gc.get_referents(itertools.pairwise("")))


def _held(obj: Any) -> list[Any]:
    """What a C object refers to, without its own type (which it does from 3.12 on)."""
    return [each for each in gc.get_referents(obj) if each is not type(obj)]


@reducer(itertools.pairwise)
def reduce_pairwise(obj: Any, context: Context) -> Any:
    held = _held(obj)
    if PAIR_IS_HELD and held:
        held.pop()
    if not held:
        return iter, ((),)
    source, *before = held
    return make_pairwise, (source, before)


def make_pairwise(source: Any, before: list[Any]) -> Any:
    return itertools.pairwise(itertools.chain(before, source) if before else source)


@reducer(itertools.count)
def reduce_count(obj: Any, context: Context) -> Any:
    if PICKLED_BY_ITSELF:
        return NotImplemented
    # two steps are taken from it: repr() rounds, and nobody uses the copy's iterators
    first = next(obj)
    return itertools.count, (first, next(obj) - first)


@reducer(itertools.repeat)
def reduce_repeat(obj: Any, context: Context) -> Any:
    if PICKLED_BY_ITSELF:
        return NotImplemented
    (element,) = _held(obj)
    try:
        return itertools.repeat, (element, operator.length_hint(obj))
    except TypeError:  # it has no end
        return itertools.repeat, (element,)


@reducer(itertools.chain)
def reduce_chain(obj: Any, context: Context) -> Any:
    if PICKLED_BY_ITSELF:
        return NotImplemented
    held = _held(obj)
    if not held:
        return iter, ((),)
    return make_chain, (held[0], held[1:])


def make_chain(sources: Any, active: list[Any]) -> Any:
    return itertools.chain(*active, itertools.chain.from_iterable(sources))


@reducer(itertools.starmap, itertools.filterfalse)
def reduce_mapped(obj: Any, context: Context) -> Any:
    if PICKLED_BY_ITSELF:
        return NotImplemented
    source, function = _held(obj)
    return type(obj), (function, source)


@reducer(
    itertools.accumulate,
    itertools.combinations,
    itertools.combinations_with_replacement,
    itertools.compress,
    itertools.cycle,
    itertools.dropwhile,
    itertools.groupby,
    itertools.islice,
    itertools.permutations,
    itertools.product,
    itertools.takewhile,
    itertools.zip_longest,
)
def reduce_hidden(obj: Any, context: Context) -> Any:
    if PICKLED_BY_ITSELF:
        return NotImplemented
    raise NotKept(
        f"an iterator of itertools.{type(obj).__name__} cannot be kept: it hides where it is"
    )
