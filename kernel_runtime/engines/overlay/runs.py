"""Runs of layers in stacks: pure."""

from __future__ import annotations

from collections.abc import Sequence


def replace_run(stack: Sequence[str], old: Sequence[str], new: str) -> list[str]:
    """A stack in which a run of layers is replaced by the one that they were merged into."""
    length = len(old)
    for start in range(len(stack) - length + 1):
        if list(stack[start : start + length]) == list(old):
            return [*stack[:start], new, *stack[start + length :]]
    return list(stack)


def runs_together(stacks: Sequence[Sequence[str]]) -> list[list[str]]:
    """The runs of two and more layers that every stack has whole or not at all."""
    above: dict[str, set[str | None]] = {}
    below: dict[str, set[str | None]] = {}
    for stack in stacks:
        for upper, layer, lower in zip([None, *stack], stack, [*stack[1:], None]):
            above.setdefault(layer, set()).add(upper)
            below.setdefault(layer, set()).add(lower)
    follower = {
        layer: next(iter(lower))
        for layer, lower in below.items()
        if len(lower) == 1 and (one := next(iter(lower))) is not None and above[one] == {layer}
    }
    starts = set(follower) - set(follower.values())
    found = []
    for start in sorted(starts):
        run = [start]
        while (one := follower.get(run[-1])) is not None:
            run.append(one)
        found.append(run)
    return found
