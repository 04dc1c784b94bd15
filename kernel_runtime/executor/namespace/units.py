"""Which variables belong together: pure decisions over what was seen of each one alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Root:
    """A variable, a class of the session, an output, a group of settings: what a walk starts from.

    ``values`` are the names that it brings back with it. ``needs`` are the keys of the classes that
    are referred to, ``shares`` the numbers of roots that it shares objects with.
    """

    kind: str
    values: list[tuple[str, Any]]
    key: str | None = None
    cls: type | None = None
    reason: str | None = None
    needs: set[str] = field(default_factory=set)
    shares: set[int] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)
    attempt: Any = None

    @property
    def names(self) -> list[str]:
        """What it is told apart by: its names, or the key of a class that has none."""
        return [name for name, _ in self.values] or ([] if self.key is None else [self.key])

    @property
    def classes(self) -> tuple[tuple[str, Any], ...]:
        """The class that it is, by its key."""
        return () if self.key is None else ((self.key, self.cls),)


def lose_dependents(roots: Sequence[Root]) -> None:
    """What needs a class that cannot be kept is lost too, with that reason."""
    lost = {root.key: root.reason for root in roots if root.key and root.reason is not None}
    is_news = bool(lost)
    while is_news:
        is_news = False
        for root in roots:
            key = next((key for key in sorted(root.needs) if key in lost), None)
            if root.reason is None and key is not None:
                root.reason = because_of_class(key, lost[key])
                if root.key:
                    lost[root.key] = root.reason
                    is_news = True


def because_of_class(key: str, reason: str | None) -> str:
    """Why something is lost with its class."""
    name = key.split("#")[0].removeprefix("__main__.")
    return f"the class {name} cannot be kept: {reason}"


def group(roots: Sequence[Root]) -> list[list[int]]:
    """Units, as numbers of roots, in an order in which each comes after what it needs.

    Roots that share objects are one unit, and so are those that need each other in a circle. Roots
    with a reason to be lost are left out. Within a unit, classes come first.
    """
    leaders = list(range(len(roots)))

    def leader(number: int) -> int:
        while leaders[number] != number:
            leaders[number] = leaders[leaders[number]]
            number = leaders[number]
        return number

    kept = [number for number, root in enumerate(roots) if root.reason is None]
    for number in kept:
        for other in roots[number].shares:
            a, b = leader(number), leader(other)
            leaders[max(a, b)] = min(a, b)
    by_key = {root.key: number for number, root in enumerate(roots) if root.key is not None}
    edges: dict[int, set[int]] = {leader(number): set() for number in kept}
    for number in kept:
        edges[leader(number)].update(leader(by_key[key]) for key in roots[number].needs)
    members: dict[int, list[int]] = {}
    for number in kept:
        members.setdefault(leader(number), []).append(number)
    units = []
    for circle in _circles(edges):
        numbers = sorted(number for unit in circle for number in members[unit])
        units.append(sorted(numbers, key=lambda number: (roots[number].key is None, number)))
    return units


def _circles(edges: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components, each after those that it points to (Tarjan, 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start in edges:
        if start in index:
            continue
        walk = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while walk:
            node, rest = walk[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    walk.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == index[node]:
                    circle: list[int] = []
                    while not circle or circle[-1] != node:
                        circle.append(stack.pop())
                        on_stack.discard(circle[-1])
                    found.append(circle)
    return found
