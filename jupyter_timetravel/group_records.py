"""What requests for groups answer, as typed values (docs/groups.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_timetravel.reading import read_restore
from jupyter_timetravel.records import RestoreResult, Result
from kernel_runtime.timeline.groups import GroupRecord, record_of


@dataclass(frozen=True)
class GroupMember:
    """A session of a group. ``state``: running, or a reason; ``at``: ``G1`` or ``#5``.

    Both are None where the kernels were not asked.
    """

    name: str
    timeline: str
    notebook: str | None
    state: str | None = None
    at: str | None = None


@dataclass(frozen=True)
class GroupState:
    """A group, its members and its records, oldest first.

    ``mixed``: a member was restored alone. ``unfinished``: a restore of the group was cut short.
    """

    name: str
    members: tuple[GroupMember, ...]
    mixed: bool
    unfinished: bool
    records: tuple[GroupRecord, ...]


@dataclass(frozen=True)
class GroupRestored:
    """What a restore of a group, or of one ``member``, did, or with ``dry_run`` would do.

    ``title``: of the record, or what it is called. ``record``, ``safety``: of a restore of all.
    ``conflicts``: paths that stay as they are, each with those who may have written it.
    ``members``: what came of each.
    """

    name: str
    title: str
    member: str | None
    record: GroupRecord | None
    safety: GroupRecord | None
    dry_run: bool
    conflicts: Mapping[str, tuple[str, ...]]
    members: Mapping[str, RestoreResult]
    took_ms: float
    text: str


def read_group(result: Result) -> GroupState:
    """Of one group."""
    return GroupState(
        name=result["group"],
        members=tuple(_member(one) for one in result["members"]),
        mixed=bool(result["mixed"]),
        unfinished=bool(result["unfinished"]),
        records=tuple(record_of(one) for one in result["records"]),
    )


def read_groups(result: Result) -> tuple[GroupState, ...]:
    """Of all of them."""
    return tuple(read_group(one) for one in result["groups"])


def read_group_checkpoint(result: Result) -> GroupRecord:
    """The record that was made."""
    return record_of(result["record"])


def read_group_restored(result: Result) -> GroupRestored:
    """Of a restore of all members, or of one."""
    record, safety = result.get("record"), result.get("safety")
    return GroupRestored(
        name=result["group"],
        title=result["title"] if record is None else record["title"],
        member=result.get("member"),
        record=None if record is None else record_of(record),
        safety=None if safety is None else record_of(safety),
        dry_run=bool(result["dry_run"]),
        conflicts={one["path"]: tuple(one["writers"]) for one in result.get("conflicts", ())},
        members={name: read_restore(one) for name, one in result["members"].items()},
        took_ms=float(result["took_ms"]),
        text=result["text"],
    )


def _member(told: Mapping[str, Any]) -> GroupMember:
    names = ("name", "timeline", "notebook", "state", "at")
    return GroupMember(**{name: told[name] for name in names if name in told})
