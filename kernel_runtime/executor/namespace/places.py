"""Where in a variable an object is found: ``nested['bad']``, ``h.con``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

_LOOKED_AT: Final = 20_000
_getattribute: Final = object.__getattribute__


def path_to(wanted: Any, name: str, value: Any) -> str | None:
    """The way from a variable to an object in it, if it is found soon; "" for the variable itself.

    Runs no code of the user's: containers and attributes of plain instances are looked at.
    """
    if value is wanted:
        return ""
    seen = {id(value)}
    waiting = deque([(name, value)])
    while waiting and len(seen) < _LOOKED_AT:
        place, holder = waiting.popleft()
        for step, item in _items(holder):
            if item is wanted:
                return place + step
            if id(item) not in seen:
                seen.add(id(item))
                waiting.append((place + step, item))
    return None


def _items(holder: Any) -> Iterator[tuple[str, Any]]:
    kind = type(holder)
    if issubclass(kind, dict):
        for key, item in list(dict.items(holder)):
            yield f"[{key!r}]" if type(key) in (str, int) else "[…]", item
    elif issubclass(kind, (list, tuple)):
        for number, item in enumerate(kind.__iter__(holder) if kind in (list, tuple) else ()):
            yield f"[{number}]", item
    elif kind in (set, frozenset):
        yield from (("{…}", item) for item in holder)
    try:
        attributes = _getattribute(holder, "__dict__")
    except AttributeError:
        attributes = None
    if type(attributes) is dict:
        for key, item in list(attributes.items()):
            yield f".{key}", item
    for base in type.__dict__["__mro__"].__get__(kind):
        slots = type.__dict__["__dict__"].__get__(base).get("__slots__", ())
        for slot in (slots,) if type(slots) is str else slots if type(slots) is tuple else ():
            try:
                yield f".{slot}", _getattribute(holder, slot)
            except AttributeError:
                continue
