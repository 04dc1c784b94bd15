"""Where the members of a group stand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jupyter_timetravel.groups.errors import MemberFailed
from jupyter_timetravel.groups.linking import Link, connect
from jupyter_timetravel.groups.opened import Opened
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import Group, GroupRecord, Member, where


async def show(store: Store, name: str) -> dict[str, Any]:
    """A group, its records, and where each member is. Raises UnknownGroup, StoreError."""
    group = store.groups.get(name)
    opened = Opened(store, group, store.groups.records(group))
    links, problems = await connect(group.members)
    why = {one.member: one.reason for one in problems}
    try:
        told = await asyncio.gather(*(_head(link) for link in links))
    finally:
        await asyncio.gather(*(link.close() for link in links))
    heads = {link.name: head for link, head in zip(links, told)}
    members = [_member(opened, one, heads.get(one.name), why) for one in group.members]
    at = ", ".join(f"{one['name']} at {one['at']}" for one in members) or "no members"
    text = f"group {name}: {at}"
    if group.alone:
        alone = ", ".join(f"{one.member} alone was restored to {one.title}" for one in group.alone)
        text += f"\nmixed: {alone}"
    if group.unfinished is not None:
        text += f"\n{opened.unfinished_text(group.unfinished)}"
    return {**group_row(group, opened.records), "members": members, "text": text}


def group_row(group: Group, records: Sequence[GroupRecord]) -> dict[str, Any]:
    """A group in a list: as the store has it."""
    return {
        "group": group.name,
        "members": [
            {"name": one.name, "timeline": one.timeline, "notebook": one.notebook}
            for one in group.members
        ],
        "mixed": bool(group.alone),
        "unfinished": group.unfinished is not None,
        "records": [one.as_json() for one in records],
    }


async def _head(link: Link) -> tuple[str, int] | None:
    try:
        head = (await link.ask("status"))["head"]
    except MemberFailed:
        return None
    return (head["id"], head["number"]) if head is not None else None


def _member(
    group: Opened, member: Member, head: tuple[str, int] | None, why: dict[str, Any]
) -> dict[str, Any]:
    known = {one.id for one in group.store.timelines()}
    if head is None and member.timeline in known:
        stored = group.store.look_at(member.timeline).head
        head = (stored.id, stored.number) if stored is not None else None
    at = where(group.records, member, *head) if head is not None else "nothing stored"
    return {
        "name": member.name,
        "timeline": member.timeline,
        "notebook": member.notebook,
        "connection_file": member.connection_file,
        "state": why.get(member.name, "running"),
        "at": at,
    }
