"""Give generators of random numbers new states: of two sessions from one checkpoint, each its own.

A restore leaves seeded generators where they were, so that what follows is repeatable. Whoever
restores one checkpoint several times at once may want the opposite, and asks for it.

Reached: the generators of ``random`` and ``numpy.random``, those that the modules share and those
that are objects anywhere in the process; torch's, shared and in variables. Not: generators of
other libraries, and iterators that have drawn their numbers already.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any


def reseed(namespace: dict[str, Any]) -> list[str]:
    """Seed them from the system's entropy; return what was done, in words."""
    done: list[str] = []
    for name, work in _steps(namespace):
        try:
            count = work()
        except Exception as error:  # one that is odd must not keep the others as they were
            done.append(f"not {name}: {type(error).__name__}: {error}")
            continue
        if count:
            done.append(f"{name} ({count})" if count > 1 else name)
    return done


def _steps(namespace: dict[str, Any]) -> Iterator[tuple[str, Callable[[], int]]]:
    yield "random", _random
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "numpy.random", lambda: _numpy(numpy)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Generator"):
        yield "torch", lambda: _torch(torch, namespace)


def _random() -> int:
    random.seed()
    # a subclass has its own way to be seeded; the system's draws from the kernel each time
    found = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), random.Random) and not issubclass(type(one), random.SystemRandom)
    ]
    for generator in found:
        generator.seed()
    return 1 + sum(one is not random._inst for one in found)


def _numpy(numpy: Any) -> int:
    numpy.seed()
    shared = numpy.mtrand._rand
    count = 1
    for one in gc.get_objects():
        kind = type(one)
        if issubclass(kind, numpy.Generator):
            fresh = type(one.bit_generator)()
            one.bit_generator.state = fresh.state
        elif issubclass(kind, numpy.RandomState) and one is not shared:
            one.seed()
        else:
            continue
        count += 1
    return count


def _torch(torch: Any, namespace: dict[str, Any]) -> int:
    torch.seed()
    found = [one for one in namespace.values() if isinstance(one, torch.Generator)]
    for generator in found:
        generator.seed()
    return 1 + len(found)
