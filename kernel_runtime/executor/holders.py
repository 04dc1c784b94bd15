"""Which variables hold an object: "pool" tells a user more than the id of a process.

Looks at a namespace without running any of the user's code: `gc.get_referents` and identities only.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import selectors
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

from kernel_runtime.executor.variables import shown

LONGEST: Final = 10_000
"""Items above which a container is taken for data."""
OBJECTS_EACH: Final = 5_000
OBJECTS: Final = 100_000
"""Objects looked at below one variable, and below all of them."""
DEPTH: Final = 8
"""References from a variable: a data loader's workers are four away (eight with instance dicts)."""
NAMES: Final = 3
"""Names that `told` lists."""

_CONTAINERS: Final[dict[type, Callable[[Any], int]]] = {
    kind: kind.__len__ for kind in (list, dict, tuple, set, frozenset, collections.deque)
}
"""With what tells their length: a class of the user's may have another way."""
_HUBS: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    threading.Thread,
    asyncio.AbstractEventLoop,
    selectors.BaseSelector,
)
"""What leads to nearly everything, so that what lies behind it is nobody's own."""


def holders(user_ns: dict[str, Any], hidden: Any, wanted: Sequence[object]) -> list[list[str]]:
    """For each of the wanted objects, the names of the variables from which it can be reached.

    hidden: as for `variables.summarize`.
    """
    sought = {id(one): position for position, one in enumerate(wanted)}
    found: list[list[str]] = [[] for _ in wanted]
    left = OBJECTS
    for name, value in shown(user_ns, hidden):
        if value is user_ns:
            continue  # it holds all that the other variables do
        seen = {id(user_ns), id(value)}
        level = [value]
        for _ in range(DEPTH + 1):
            for one in level:
                if id(one) in sought:
                    found[sought[id(one)]].append(name)
            inner = gc.get_referents(*filter(_is_looked_into, level))
            level = []
            for one in inner:
                if gc.is_tracked(one) and id(one) not in seen:
                    seen.add(id(one))
                    level.append(one)
            if not level or len(seen) > OBJECTS_EACH:
                break
        left -= len(seen)
        if left < 0:
            break
    return found


def told(names: list[str]) -> str:
    """`` (of pool)``, or nothing where there is no name."""
    if not names:
        return ""
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f" (of {', '.join(names[:NAMES])}{more})"


def _is_looked_into(one: Any) -> bool:
    kind = type(one)
    for container, length in _CONTAINERS.items():
        if issubclass(kind, container):
            return length(one) <= LONGEST
    return not issubclass(kind, _HUBS)
