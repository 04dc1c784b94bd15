"""The order and the indentation in which a tree of checkpoints is shown.

The branch that leads to the head runs down without indentation, however long it is; a side
branch is indented under the checkpoint that it leaves, before the main line goes on:

    ○ 1
    ○ 2
    ├─○ 3     left by a restore of 2
    │ ○ 4
    ○ 5
    ● 6       the head

It works on numbers or ids alike and knows nothing of records, so that the magics can draw what
a ``list`` reply brought.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kernel_runtime.later import dataclass

NODE: Final = "○"
HEAD_NODE: Final = "●"


@dataclass(frozen=True)
class Row:
    """One line of the drawing: ``prefix`` ends with the node's mark."""

    id: str
    prefix: str
    depth: int
    on_present_branch: bool
    is_head: bool


def rows(order: Sequence[str], parents: Mapping[str, str | None], head: str | None) -> list[Row]:
    """Draw the checkpoints ``order`` (ids, oldest first).

    ``parents`` may know more than ``order``: a checkpoint whose parent is not shown is drawn
    below its nearest shown ancestor. Takes linear time in their number.
    """
    shown = set(order)
    children: dict[str | None, list[str]] = {}
    nearest: dict[str, str | None] = {}
    for id in order:
        children.setdefault(_shown_ancestor(id, parents, shown, nearest), []).append(id)
    present = _ancestry(head, parents)

    out: list[Row] = []
    # Each entry: a checkpoint, the rails left of it, and the branch mark of its own first line.
    stack = [(root, "", "") for root in reversed(children.get(None, []))]
    while stack:
        id, rails, mark = stack.pop()
        is_head = id == head
        node = HEAD_NODE if is_head else NODE
        out.append(
            Row(
                id=id,
                prefix=(rails[: len(rails) - len(mark)] + mark if mark else rails) + node,
                depth=len(rails) // 2,
                on_present_branch=id in present,
                is_head=is_head,
            )
        )
        below = children.get(id, [])
        if not below:
            continue
        main = next((child for child in below if child in present), below[-1])
        stack.append((main, rails, ""))
        stack.extend((side, rails + "│ ", "├─") for side in reversed(below) if side != main)
    return out


def _shown_ancestor(
    id: str,
    parents: Mapping[str, str | None],
    shown: set[str],
    nearest: dict[str, str | None],
) -> str | None:
    """The nearest ancestor in ``shown``; ``nearest`` remembers what was passed on the way."""
    passed = []
    parent = parents.get(id)
    while parent is not None and parent not in shown:
        if parent in nearest:
            parent = nearest[parent]
            break
        passed.append(parent)
        parent = parents.get(parent)
    for hidden in passed:
        nearest[hidden] = parent
    return parent


def _ancestry(head: str | None, parents: Mapping[str, str | None]) -> set[str]:
    line = set()
    while head is not None and head not in line:
        line.add(head)
        head = parents.get(head)
    return line
