"""Sets of plain values come back in the order in which they were iterated.

With the same hash seed, where an item of a set lies still depends on what was there when it was
added: one whose place is taken goes elsewhere. The unpickler adds items in the order of iteration,
which is another one. So the table is read, and the items are put back in an order in which each
finds taken what was taken then (probing as in CPython's Objects/setobject.c). Where that cannot be
done - an item that is gone had been in the way, or another interpreter - the order may differ.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Iterator
from typing import Any, Final

_PLAIN: Final = (str, bytes, int, float, bool)
_ENTRY: Final = 16
_SMALL: Final = 8
_LINEAR_PROBES: Final = 9
_PERTURB_SHIFT: Final = 5
_BATCH: Final = 1000
_LARGEST: Final = 100_000
_WORD: Final = (1 << 64) - 1
_IS_KNOWN: Final = (
    sys.implementation.name == "cpython"
    and object.__basicsize__ == 16
    and set.__basicsize__ == 200
    and sys.version_info < (3, 15)
)


def placement(found: set[Any]) -> tuple[list[Any], int] | None:
    """Items in the order in which to add them, and the size of the table; None if not needed."""
    if not _IS_KNOWN or not 2 <= len(found) <= _LARGEST:
        return None
    items = list(found)
    if not all(type(item) in _PLAIN for item in items):
        return None
    plainly: set[Any] = set()
    for start in range(0, len(items), _BATCH):
        plainly.update(items[start : start + _BATCH])
    if _is_same(plainly, items):
        return None
    table = _table(found)
    order = None if table is None else _order(table)
    if table is None or order is None:
        return None
    again: set[Any] = set()
    place(again, order, len(table))
    return (order, len(table)) if _is_same(again, items) else None


def place(target: set[Any], order: list[Any], size: int) -> None:
    """Fill a set anew, in a table of ``size`` slots."""
    target.clear()
    # A dict is added to a table that is made large enough for it first. What fills up to the size
    # comes last, so it is in nobody's way, and goes again.
    first = order[: size // 2 - 1]
    missing = max(size // 4, 5) - len(first) if size > _SMALL else 0
    fillers = [object() for _ in range(missing)]
    target.update(dict.fromkeys([*first, *fillers]))
    target.difference_update(fillers)
    for item in order[len(first) :]:
        target.add(item)


def _is_same(found: set[Any], items: list[Any]) -> bool:
    return all(map(operator.is_, found, items))


def _table(found: set[Any]) -> list[Any] | None:
    """What lies in each slot: None in an empty one, the set itself where an item was deleted."""
    fill, used, mask, table = (ctypes.c_ssize_t * 4).from_address(id(found) + 16)
    size = mask + 1
    inside = id(found) + 16 + 4 * 8 + 2 * 8
    is_sane = used == len(found) and used <= fill <= size and size & mask == 0
    expected = set.__basicsize__ + (0 if table == inside else size * _ENTRY)
    if not is_sane or found.__sizeof__() != expected:
        return None
    by_id = {id(item): item for item in found}
    entries = (ctypes.c_ssize_t * (2 * size)).from_address(table)[::2]
    return [by_id.get(key, found) if key else None for key in entries]


def _order(table: list[Any]) -> list[Any] | None:
    mask = len(table) - 1
    placed: set[int] = set()
    displaced: dict[int, list[int]] = {}
    for slot, item in enumerate(table):
        if item is None or type(item) is set:
            continue
        before = []
        for probe in _probes(hash(item), mask):
            if probe == slot:
                break
            if table[probe] is None or type(table[probe]) is set:
                return None
            before.append(probe)
        if before:
            displaced[slot] = before
        else:
            placed.add(slot)
    order = [table[slot] for slot in sorted(placed)]
    while displaced:
        ready = [s for s, before in displaced.items() if all(b in placed for b in before)]
        if not ready:
            return None
        order += [table[slot] for slot in ready]
        placed.update(ready)
        for slot in ready:
            del displaced[slot]
    return order


def _probes(hashed: int, mask: int) -> Iterator[int]:
    perturb = hashed & _WORD
    slot = perturb & mask
    while True:
        linear = _LINEAR_PROBES if slot + _LINEAR_PROBES <= mask else 0
        yield from range(slot, slot + linear + 1)
        perturb >>= _PERTURB_SHIFT
        slot = (slot * 5 + 1 + perturb) & mask
