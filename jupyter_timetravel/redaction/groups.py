"""Secrets in the records of groups: their comments, and why members are missing in them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import Group, GroupRecord


@dataclass(frozen=True)
class Found:
    """A group, and those of its records that hold a text, with it replaced."""

    group: Group
    records: tuple[GroupRecord, ...]


def look(store: Store, timelines: Collection[str], needle: Needle) -> list[Found]:
    """Records that are about one of these timelines. Raises StoreError."""
    if not needle.texts:
        return []
    found = []
    for group in store.groups.all():
        records = [
            made
            for one in store.groups.records(group)
            if _is_about(group, one, timelines) and (made := _cleaned(one, needle)) != one
        ]
        if records:
            found.append(Found(group, tuple(records)))
    return found


def _is_about(group: Group, record: GroupRecord, timelines: Collection[str]) -> bool:
    held = {one.timeline for one in record.members.values()}
    return not held.union(one.timeline for one in group.members).isdisjoint(timelines)


def _cleaned(record: GroupRecord, needle: Needle) -> GroupRecord:
    missing = {name: needle.cleaned(why) for name, why in record.missing.items()}
    return replace(record, comment=needle.cleaned(record.comment), missing=missing)
