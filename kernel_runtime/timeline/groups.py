"""Groups of sessions that are captured and restored together. Pure: no I/O and no clock.

A group names its members; each of its records names one checkpoint of each member. Who wrote a
file that members share is told from what each of them ran between the snapshots of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from kernel_runtime.errors import BadRequest, TimeTravelError
from kernel_runtime.timeline.model import check_text

NAME: Final = re.compile(r"[^\W_][\w.@ -]{0,99}")
_NUMBER: Final = re.compile(r"[Gg#]?([0-9]{1,18})", re.ASCII)
_RELATIVE: Final = re.compile(r"-([0-9]{1,18})", re.ASCII)
_PREFIX: Final = re.compile(r"[0-9a-f]{6,32}")

Kind = Literal["checkpoint", "safety"]


class UnknownGroup(TimeTravelError):
    """There is no group, member or group record of that name: nothing was done."""


class GroupRefused(TimeTravelError):
    """A group cannot be changed, captured or restored as asked: nothing was changed."""


@dataclass(frozen=True)
class Member:
    """A session of a group. ``notebook``: its path; None for a kernel without one."""

    name: str
    timeline: str
    notebook: str | None
    connection_file: str


@dataclass(frozen=True)
class Held:
    """The checkpoint that a record names of one member."""

    timeline: str
    checkpoint: str
    number: int


@dataclass(frozen=True)
class GroupRecord:
    """One moment of a group. ``missing``: members that it does not hold, and why."""

    id: str
    number: int
    created_at: datetime
    kind: Kind
    comment: str
    members: Mapping[str, Held]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether it holds every member that the group had."""
        return not self.missing

    @property
    def title(self) -> str:
        """``G3``, by which it can be named."""
        return f"G{self.number}"

    def as_json(self) -> dict[str, Any]:
        """For answers; docs/groups.md describes it."""
        return {
            "id": self.id,
            "number": self.number,
            "title": self.title,
            "created_at": self.created_at.isoformat(),
            "kind": self.kind,
            "comment": self.comment,
            "complete": self.is_complete,
            "members": {
                name: {"timeline": one.timeline, "checkpoint": one.checkpoint, "number": one.number}
                for name, one in self.members.items()
            },
            "missing": dict(self.missing),
        }


def record_of(told: Mapping[str, Any]) -> GroupRecord:
    """From what ``GroupRecord.as_json`` gave."""
    return GroupRecord(
        told["id"],
        told["number"],
        datetime.fromisoformat(told["created_at"]),
        told["kind"],
        told["comment"],
        {name: Held(**one) for name, one in told["members"].items()},
        dict(told["missing"]),
    )


@dataclass(frozen=True)
class Alone:
    """One member was restored without the others: then they are of different moments.

    ``safety``: its checkpoint from before. ``ended_at``: seconds since the epoch.
    """

    member: str
    record: str
    title: str
    safety: str
    ended_at: float


@dataclass(frozen=True)
class Unfinished:
    """A restore of the whole group that has begun: to which record, and what it was before."""

    record: str
    safety: str


@dataclass(frozen=True)
class Group:
    """``alone``: restores of single members since all were of one moment."""

    id: str
    name: str
    created_at: datetime
    members: tuple[Member, ...] = ()
    alone: tuple[Alone, ...] = ()
    unfinished: Unfinished | None = None

    def member(self, name: str) -> Member:
        """Raises UnknownGroup."""
        for one in self.members:
            if one.name == name:
                return one
        names = ", ".join(one.name for one in self.members) or "nobody"
        raise UnknownGroup(
            f"The group {self.name} has no member {name!r}; it has {names}. Nothing was done."
        )


def without(group: Group, names: Collection[str]) -> Group:
    """The group without these members; what was noted of them goes too. Raises UnknownGroup."""
    gone = {group.member(name).name for name in names}
    return replace(
        group,
        members=tuple(one for one in group.members if one.name not in gone),
        alone=tuple(one for one in group.alone if one.member not in gone),
    )


def check_name(name: str, what: str) -> str:
    """A name of a group or a member that can be typed. Raises BadRequest."""
    name = check_text(name, "name").strip()
    if not NAME.fullmatch(name):
        raise BadRequest(
            f"{name!r} cannot be the name of a {what}: it begins with a letter or a digit, and "
            "holds letters, digits, blanks and . @ - _, 100 at most. Nothing was done."
        )
    return name


def resolve(records: Sequence[GroupRecord], spec: str) -> GroupRecord:
    """The record that is meant: ``G3``, ``3``, ``-1``, an id's beginning or a comment.

    Relative numbers count what was asked for, not safety records. Raises UnknownGroup.
    """
    text = spec.strip()
    ordered = sorted(records, key=lambda one: one.number)
    found: list[GroupRecord] = []
    if match := _RELATIVE.fullmatch(text):
        asked = [one for one in ordered if one.kind == "checkpoint"]
        back = int(match[1])
        found = [asked[-back]] if 0 < back <= len(asked) else []
    elif match := _NUMBER.fullmatch(text):
        found = [one for one in ordered if one.number == int(match[1])]
    if not found:
        found = [one for one in ordered if one.comment.strip() == text and text][-1:]
    if not found and _PREFIX.fullmatch(text):
        found = [one for one in ordered if one.id.startswith(text)]
    if len(found) != 1:
        known = ", ".join(one.title for one in ordered[-8:]) or "none yet"
        raise UnknownGroup(
            f"The group has no one record {spec!r}; there are: {known}. Nothing was done."
        )
    return found[0]


def where(records: Iterable[GroupRecord], member: Member, head: str | None, number: int) -> str:
    """Where a member stands, in a word: ``G1`` if at a record's checkpoint, else ``#7``."""
    at = [
        one
        for one in records
        if (held := one.members.get(member.name)) is not None
        and held.timeline == member.timeline
        and held.checkpoint == head
    ]
    if not at:
        return f"#{number}"
    return max(at, key=lambda one: (one.kind == "checkpoint", one.number)).title


# -- who wrote what -------------------------------------------------------------------------


@dataclass(frozen=True)
class Doing:
    """A member was at work from start to end, in seconds since the epoch."""

    member: str
    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """What differs between two snapshots that follow each other, whosever they are.

    after: the first moment at which the earlier one can have been taken; before: the last one of
    the later. Paths as pairs of the number of a root and the path below it.
    """

    after: float
    before: float
    paths: frozenset[tuple[int, bytes]]


Path = tuple[int, bytes]


def writers(steps: Iterable[Step], doings: Iterable[Doing]) -> dict[Path, frozenset[str]]:
    """Which members may have written each path; nobody: it was somebody outside of the group.

    Whoever was at work between two snapshots may have written what differs.
    """
    known = list(doings)
    found: dict[Path, frozenset[str]] = {}
    for step in steps:
        at_work = frozenset(
            one.member for one in known if one.start <= step.before and one.end > step.after
        )
        for path in step.paths:
            # that nobody is known to have written it once makes it doubtful for good
            known_before = found.get(path)
            if known_before is None:
                found[path] = at_work
            elif known_before and at_work:
                found[path] = known_before | at_work
            else:
                found[path] = frozenset()
    return found


@dataclass(frozen=True)
class Shares:
    """Of the paths that differ: what is one member's alone, and what is left with the reason."""

    own: frozenset[Path]
    conflicts: Mapping[Path, frozenset[str]]


def shares(
    member: str, differing: Iterable[Path], written: Mapping[Path, frozenset[str]]
) -> Shares:
    """Which paths go back with one member.

    Its own; not those that it and others wrote, or that nobody is known to have written. A
    directory goes back as a whole, so it stays if something below it stays.
    """
    paths = set(differing)
    own = {path for path in paths if written.get(path, frozenset()) == {member}}
    conflicts = {
        path: found
        for path in paths - own
        if not (found := written.get(path, frozenset())) or member in found
    }
    for root, path in paths - own:
        parent = path
        while b"/" in parent:
            parent = parent.rpartition(b"/")[0]
            if (root, parent) in own:
                own.discard((root, parent))
                conflicts[root, parent] = written[root, parent] | written.get(
                    (root, path), frozenset()
                )
    return Shares(frozenset(own), conflicts)
