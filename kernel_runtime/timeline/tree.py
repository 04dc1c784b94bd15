"""The tree of checkpoints of one session. Pure: it reads no clock and does no I/O.

The supervisor owns one Timeline, changes it from one thread only, and hands ``state`` and the
checkpoints that a call returned to the store. A timeline may have several roots (a restart
without a parent begins one). ``head`` is the checkpoint that the live session descends from;
the present branch is the head and its ancestors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from kernel_runtime.errors import BadRequest, UnknownCheckpoint
from kernel_runtime.later import dataclass
from kernel_runtime.timeline.cells import Cell
from kernel_runtime.timeline.errors import DeleteRefused
from kernel_runtime.timeline.model import (
    NO_VARIABLES,
    REASONS,
    Capture,
    Checkpoint,
    Coordinate,
    Reason,
    Summary,
    check_text,
    first_line,
    new_id,
    record,
)
from kernel_runtime.timeline.names import (
    NUMBER,
    RELATIVE,
    NameIndex,
    Spec,
    check_label,
    matching_prefix,
)
from kernel_runtime.timeline.variables import share


class _AtHead:
    """Stands for "below the head", since None is a parent of its own: a new root."""


AT_HEAD: Final = _AtHead()


@dataclass(frozen=True)
class TimelineState:
    """What the store keeps of a timeline beside its checkpoints."""

    id: str
    head: str | None = None
    last_safety: str | None = None
    next_number: int = 1


@dataclass(frozen=True)
class Deleted:
    """A checkpoint that is gone, and its children as they are now: hung on its parent."""

    checkpoint: Checkpoint
    rehung: tuple[Checkpoint, ...]


class Timeline:
    """The checkpoints of one session, their order, and where the session is among them."""

    def __init__(self, state: TimelineState, checkpoints: Iterable[Checkpoint] = ()) -> None:
        """Raises BadRequest if the checkpoints do not form a tree with that head."""
        self.id = state.id
        self._head = state.head
        self._last_safety = state.last_safety
        self._next_number = state.next_number
        self._checkpoints: dict[str, Checkpoint] = {}
        self._children: dict[str | None, list[str]] = {}
        self._names = NameIndex()
        for checkpoint in sorted(checkpoints, key=lambda c: c.number):
            self._check_parent(checkpoint.parent)
            self._put(checkpoint)
        if self._head is not None and self._head not in self._checkpoints:
            raise BadRequest(
                f"The timeline {self.id} has no checkpoint {self._head}, which is its head."
            )
        if self._last_safety not in self._checkpoints:
            self._last_safety = None

    # -- reading ----------------------------------------------------------------------------

    @property
    def state(self) -> TimelineState:
        """An immutable copy of what is not in the checkpoints, for the store."""
        return TimelineState(self.id, self._head, self._last_safety, self._next_number)

    @property
    def head(self) -> Checkpoint | None:
        """The checkpoint that the live session descends from."""
        return None if self._head is None else self._checkpoints[self._head]

    @property
    def last_safety(self) -> Checkpoint | None:
        """The safety checkpoint of the last restore: what ``--undo`` goes back to."""
        return None if self._last_safety is None else self._checkpoints[self._last_safety]

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __iter__(self) -> Iterator[Checkpoint]:
        """Oldest first: by number, never by time, for clocks go back."""
        return iter(self._checkpoints.values())

    def __contains__(self, id: object) -> bool:
        return id in self._checkpoints

    def __getitem__(self, id: str) -> Checkpoint:
        """By exact id. Raises UnknownCheckpoint."""
        try:
            return self._checkpoints[id]
        except KeyError:
            raise UnknownCheckpoint(id) from None

    def history(self, id: str) -> list[str]:
        """Ids of the ancestors, oldest first, without the checkpoint itself."""
        ancestors = []
        parent = self[id].parent
        while parent is not None:
            ancestors.append(parent)
            parent = self._checkpoints[parent].parent
        ancestors.reverse()
        return ancestors

    def children(self, id: str | None) -> tuple[Checkpoint, ...]:
        """Oldest first; those of None are the roots."""
        return tuple(self._checkpoints[child] for child in self._children.get(id, ()))

    def present_branch(self) -> list[Checkpoint]:
        """The head and its ancestors, oldest first."""
        if self._head is None:
            return []
        return [self._checkpoints[id] for id in (*self.history(self._head), self._head)]

    def parents(self) -> dict[str, str | None]:
        """The parent of each checkpoint: what ``list`` sends instead of every history."""
        return {checkpoint.id: checkpoint.parent for checkpoint in self}

    def record(self, checkpoint: Checkpoint, *, history: bool = True) -> dict[str, Any]:
        """As docs/protocol.md writes it. Without history its cost does not grow with depth."""
        return record(
            checkpoint,
            is_head=checkpoint.id == self._head,
            history=self.history(checkpoint.id) if history else None,
        )

    def resolve(self, spec: Spec) -> Checkpoint:
        """Find a checkpoint by any of its names. Raises UnknownCheckpoint with what is near.

        In this order: number (12, "12", "#12"), relative number (-1 is the head, -2 its
        parent), id, label (of several bearers the newest), comment of one, prefix of one id.
        """
        text = str(spec).strip()
        candidates: list[str] = []
        if isinstance(spec, bool):
            pass
        elif found := RELATIVE.fullmatch(text):
            candidates = self._relative(int(found[1]))
        elif found := NUMBER.fullmatch(text):
            by_number = self._names.by_number(int(found[1]))
            candidates = [by_number] if by_number else []
        if not candidates and isinstance(spec, str):
            candidates = [text] if text in self._checkpoints else self._names.bearers(text)
            if len(candidates) > 1 and not self._names.is_label(text):
                numbers = self._numbers(candidates)
                raise UnknownCheckpoint(
                    spec, f"{numbers} all have that comment: say which by its number."
                )
            if not candidates:
                candidates = matching_prefix(self._checkpoints, text)
                if len(candidates) > 1:
                    numbers = self._numbers(candidates)
                    raise UnknownCheckpoint(spec, f"The ids of {numbers} all begin like that.")
        if not candidates:
            raise UnknownCheckpoint(spec, self._names.suggest(spec))
        return self._checkpoints[candidates[0]]

    def _numbers(self, ids: Sequence[str]) -> str:
        more = ", …" if len(ids) > 5 else ""
        return ", ".join(f"#{self._checkpoints[id].number}" for id in ids[:5]) + more

    def _relative(self, back: int) -> list[str]:
        id = self._head
        for _ in range(back - 1):
            if id is None:
                break
            id = self._checkpoints[id].parent
        return [id] if id is not None and back > 0 else []

    # -- changing ---------------------------------------------------------------------------

    def add(
        self,
        *,
        created_at: datetime,
        reason: Reason,
        coordinate: Coordinate,
        parent: str | _AtHead | None = AT_HEAD,
        comment: str = "",
        label: str | None = None,
        pinned: bool = False,
        is_auto: bool | None = None,
        code: str = "",
        captures: Iterable[Capture] = (),
        variables: Mapping[str, Summary] = NO_VARIABLES,
        cells: Iterable[Cell] = (),
        id: str | None = None,
        move_head: bool = True,
    ) -> Checkpoint:
        """Add a checkpoint with the next number and make it the head.

        ``is_auto`` is true by default for all but manual ones. A safety checkpoint becomes
        ``last_safety``: take the target of an undo before adding it. Raises BadRequest or
        UnknownCheckpoint, and then nothing has changed.
        """
        if reason not in REASONS:
            raise BadRequest(f"{reason!r} is no reason for a checkpoint. Nothing was done.")
        if created_at.tzinfo is None:
            raise BadRequest("The time of a checkpoint needs its time zone. Nothing was done.")
        if id is not None and id in self._checkpoints:
            raise BadRequest(f"There is a checkpoint {id} already. Nothing was done.")
        parent_id = self._head if isinstance(parent, _AtHead) else parent
        self._check_parent(parent_id)
        before = self._checkpoints[parent_id].variables if parent_id is not None else NO_VARIABLES
        checkpoint = Checkpoint(
            id=id or new_id(),
            number=self._next_number,
            parent=parent_id,
            created_at=created_at,
            comment=check_text(comment, "comment"),
            label=None if label is None else check_label(label),
            pinned=pinned,
            is_auto=reason != "manual" if is_auto is None else is_auto,
            reason=reason,
            code=first_line(code),
            coordinate=coordinate,
            captures=tuple(captures),
            variables=share(before, variables),
            cells=tuple(cells),
        )
        self._put(checkpoint)
        self._next_number += 1
        if move_head:
            self._head = checkpoint.id
        if reason == "safety":
            self._last_safety = checkpoint.id
        return checkpoint

    def replace(
        self,
        id: str,
        *,
        captures: Iterable[Capture] | None = None,
        label: str | None = "",
        comment: str | None = None,
        pinned: bool | None = None,
    ) -> Checkpoint:
        """Put a changed value in the place of a checkpoint. A label of None takes it away."""
        old = self[id]
        changes: dict[str, Any] = {}
        if captures is not None:
            changes["captures"] = tuple(captures)
        if label != "":
            changes["label"] = None if label is None else check_label(label)
        if comment is not None:
            changes["comment"] = check_text(comment, "comment")
        if pinned is not None:
            changes["pinned"] = pinned
        return self._swap(old, replace(old, **changes))

    def set_capture(self, id: str, capture: Capture) -> Checkpoint:
        """Put a capture in the place of the one of the same kind and engine, or beside others."""
        old = self[id]
        return self._swap(old, old.with_capture(capture))

    def move_head(self, id: str | None) -> None:
        """The live session now descends from ``id``, or from nothing. Raises UnknownCheckpoint."""
        self._check_parent(id)
        self._head = id

    def delete(self, id: str) -> Deleted:
        """Take a checkpoint out; its children are hung on its parent and get its cells.

        Raises DeleteRefused for the head (a session that dies is put back to it) and for a
        pinned one. After the last safety checkpoint was deleted there is nothing to undo to.
        """
        checkpoint = self[id]
        if id == self._head:
            raise DeleteRefused(
                checkpoint.number,
                "the session is at it, and would be put back to it after a crash",
                "Run a cell or %checkpoint first, or %restore another one.",
            )
        if checkpoint.pinned:
            raise DeleteRefused(
                checkpoint.number,
                "it is pinned",
                f"Take the pin away first: %checkpoint --unpin {checkpoint.number}.",
            )
        # what ran before it also led to its children
        rehung = tuple(
            replace(child, parent=checkpoint.parent, cells=(*checkpoint.cells, *child.cells))
            for child in self.children(id)
        )
        del self._checkpoints[id]
        self._names.discard(checkpoint)
        self._children.pop(id, None)
        siblings = self._children[checkpoint.parent]
        siblings.remove(id)
        siblings.extend(child.id for child in rehung)
        siblings.sort(key=lambda sibling: self._checkpoints[sibling].number)
        for child in rehung:
            self._checkpoints[child.id] = child
        if id == self._last_safety:
            self._last_safety = None
        return Deleted(checkpoint, rehung)

    def _check_parent(self, id: str | None) -> None:
        if id is not None and id not in self._checkpoints:
            raise UnknownCheckpoint(id)

    def _put(self, checkpoint: Checkpoint) -> None:
        self._checkpoints[checkpoint.id] = checkpoint
        self._children.setdefault(checkpoint.parent, []).append(checkpoint.id)
        self._names.add(checkpoint)

    def _swap(self, old: Checkpoint, new: Checkpoint) -> Checkpoint:
        self._names.discard(old)
        self._names.add(new)
        self._checkpoints[old.id] = new
        return new
