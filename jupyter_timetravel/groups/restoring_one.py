"""Restoring one member of a group: the others go on, and what they wrote stays.

Of the files that members share, those go back that this member alone has written since. What it
and others wrote is a conflict: named, and left as it is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_timetravel.groups.errors import GroupFailed, MemberFailed
from jupyter_timetravel.groups.holding import NotAtRest, held
from jupyter_timetravel.groups.linking import RESTORE_S, Link, connect
from jupyter_timetravel.groups.opened import Opened, opened
from jupyter_timetravel.groups.telling import Say, nobody
from jupyter_timetravel.groups.writing import FOREVER, Shared, doings, shared_since, still_as
from kernel_runtime.engines.workspace.names import printable
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store
from kernel_runtime.supervisor import faults
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline import Timeline
from kernel_runtime.timeline.groups import (
    Alone,
    Doing,
    Group,
    GroupRefused,
    Member,
    Path,
    Shares,
    resolve,
    shares,
    where,
    writers,
)

_SHOWN = 8


@dataclass(frozen=True)
class _Target:
    """Where a member goes back to. since: seconds since the epoch, when that was."""

    checkpoint: str
    since: float
    record: str
    title: str
    undone: str | None = None
    """The checkpoint that a restore which is taken back went to."""


async def restore_member(
    store: Store,
    name: str,
    member_name: str,
    spec: str | None = None,
    *,
    undo: bool = False,
    dry_run: bool = False,
    timeout: float = 120.0,
    say: Say = nobody,
) -> dict[str, Any]:
    """Bring one member back to a record; the result is told in docs/groups.md.

    undo: to before its last such restore, without spec. timeout: seconds until it must be at rest.
    say: is told how far it is. Raises UnknownGroup, GroupRefused, GroupFailed, StoreError: then
    nothing was changed.
    """
    started = time.monotonic()
    async with opened(store, name, started + timeout) as group:
        group.refuse_unfinished()
        member = group.group.member(member_name)
        target = _target(group, store, member, spec, undo)
        what = f"{member.name} of the group {name} was not restored to {target.title}"
        links, problems = await connect(group.group.members)
        try:
            own = [link for link in links if link.name == member.name]
            others = [link for link in links if link.name != member.name]
            if not own:
                mine = [one for one in problems if one.member == member.name]
                raise GroupFailed(what, mine, "Nothing was changed.")
            async with held(own, started + timeout, say) as lease:
                say(f"finding what {member.name} alone has written")
                shared, parts = await _plan(group, own[0], others, target)
                paths = None
                if shared is not None:
                    paths = tuple(_absolute(shared, path) for path in sorted(parts.own))
                asked = RestoreRequest(target.checkpoint, paths=paths, keep_notebooks=True)
                if dry_run:
                    result = await own[0].restore(replace(asked, dry_run=True))
                    return _told(group, member, target, shared, parts, result, started)
                faults.point("group member planned")
                say(f"{member.name} goes back")
                result = await own[0].restore(replace(asked, lease=lease))
                faults.point("group member restored")
                await group.put(_noted(group.group, member, target, result, undo))
            told = _told(group, member, target, shared, parts, result, started)
            await _tell(others, group, told)
            return told
        except NotAtRest as error:
            raise GroupFailed(what, error.problems, "Nothing was changed.") from None
        except MemberFailed as error:
            raise GroupFailed(what, [error], "Nothing was changed.") from error
        finally:
            await asyncio.gather(*(link.close() for link in links))


def _target(group: Opened, store: Store, member: Member, spec: str | None, undo: bool) -> _Target:
    if (spec is None) != undo:
        raise BadRequest("Name one record of the group, or undo. Nothing was done.")
    if spec is None:
        last = [one for one in group.group.alone if one.member == member.name]
        if not last:
            raise GroupRefused(
                f"{member.name} was not restored alone since all members were of one moment, so "
                "there is nothing to undo. Nothing was done."
            )
        since = store.look_at(member.timeline)[last[-1].safety].created_at.timestamp()
        title = f"before its restore to {last[-1].title}"
        undone = next((one for one in group.records if one.id == last[-1].record), None)
        kept = undone.members.get(member.name) if undone is not None else None
        went_to = kept.checkpoint if kept is not None else None
        return _Target(last[-1].safety, since, last[-1].record, title, went_to)
    record = resolve(group.records, spec)
    kept = record.members.get(member.name)
    if kept is None or kept.timeline != member.timeline:
        why = record.missing.get(member.name, "it was another session, or no member, then")
        raise GroupRefused(f"{record.title} does not hold {member.name}: {why}. Nothing was done.")
    return _Target(kept.checkpoint, record.created_at.timestamp(), record.id, record.title)


async def _plan(
    group: Opened, own: Link, others: Sequence[Link], target: _Target
) -> tuple[Shared | None, Shares]:
    """Which files go back with the member, and which are a conflict. Raises MemberFailed."""
    comment = f"group {group.group.name}: before the restore of {own.name} to {target.title}"
    made = await own.ask("checkpoint", RESTORE_S, comment=comment)
    if made["problem"]:
        raise own.failed("not stored", made["problem"])
    busy = await _at_work(group.group, others)
    return await asyncio.to_thread(
        _shares, group, own.name, target, str(made["checkpoint"]["id"]), busy
    )


def _shares(
    group: Opened, name: str, target: _Target, present: str, busy: Sequence[str]
) -> tuple[Shared | None, Shares]:
    timelines = {one.name: _timeline(group.store, one) for one in group.group.members}
    known = {one: timeline for one, timeline in timelines.items() if timeline is not None}
    own = known.get(name)
    if own is None or target.checkpoint not in own or present not in own:
        raise MemberFailed(name, "refused", f"its checkpoint of {target.title} was deleted")
    blobs = BlobStore(group.store.directory)
    shared = shared_since(blobs, known, own[target.checkpoint], target.since, own[present])
    if shared is None:
        return None, Shares(frozenset(), {})
    done = list(doings(known, target.since, group.group.alone))
    for one in busy:
        # what it runs now is in no checkpoint yet
        timeline = known.get(one)
        last = timeline.head.created_at.timestamp() if timeline and timeline.head else 0.0
        done.append(Doing(one, last, FOREVER))
    # front ends write notebooks, whoever runs meanwhile; no restore touches them
    differing = {path for path in shared.differing if not path[1].endswith(b".ipynb")}
    written = writers(shared.steps, done)
    if target.undone is not None and target.undone in own:
        # what is as the restore has left it was written by nobody after it, whoever ran since
        left = still_as(blobs, own[target.undone], own[present], differing)
        written |= dict.fromkeys(left, frozenset({name}))
    return shared, shares(name, differing, written)


def _timeline(store: Store, member: Member) -> Timeline | None:
    """None for one that was deleted, or of a kernel that had no notebook and has ended."""
    known = {one.id for one in store.timelines()}
    return store.look_at(member.timeline) if member.timeline in known else None


async def _at_work(group: Group, others: Sequence[Link]) -> list[str]:
    """Members that may have written what no checkpoint tells: busy, or not to be asked."""

    async def one(link: Link) -> bool:
        if (await link.ask("status"))["busy"]:
            return True
        cells = (await link.ask("cells", since=-1))["cells"]
        return any(cell["checkpoint"] is None for cell in cells)

    told = await asyncio.gather(*(one(link) for link in others), return_exceptions=True)
    busy = [link.name for link, found in zip(others, told) if found is not False]
    return busy


def _noted(
    group: Group, member: Member, target: _Target, result: Mapping[str, Any], undo: bool
) -> Group:
    if undo:
        last = [one for one in group.alone if one.member == member.name][-1]
        return replace(group, alone=tuple(one for one in group.alone if one is not last))
    safety = result["safety"]["id"]
    one = Alone(member.name, target.record, target.title, safety, time.time())
    return replace(group, alone=(*group.alone, one))


async def _tell(others: Sequence[Link], group: Opened, told: Mapping[str, Any]) -> None:
    """The other members' panels and notebooks; who does not answer is not waited for."""
    name, mixed = group.group.name, bool(group.group.alone)
    state = {
        "member": told["member"],
        "title": told["title"],
        "conflicts": told["conflicts"],
        "mixed": mixed,
    }

    async def one(link: Link) -> None:
        text = f"{told['member']} was restored to {told['title']} (group {name})"
        head = (await link.ask("status"))["head"]
        if mixed and head is not None:
            at = where(group.records, link.member, head["id"], head["number"])
            text += f"; the group is mixed: {link.name} at {at}, {told['member']} at "
            text += told["title"]
        await link.ask("tell", group=name, text=f"{text}.", state=state)

    await asyncio.gather(*(one(link) for link in others), return_exceptions=True)


def _absolute(shared: Shared, path: Path) -> str:
    return printable(os.path.join(os.fsencode(shared.roots[path[0]]), path[1]))


def _told(
    group: Opened,
    member: Member,
    target: _Target,
    shared: Shared | None,
    parts: Shares,
    result: Mapping[str, Any],
    started: float,
) -> dict[str, Any]:
    conflicts = [
        {"path": _absolute(shared, path), "writers": sorted(by)}
        for path, by in sorted(parts.conflicts.items())
        if shared is not None
    ]
    dry_run = bool(result.get("dry_run"))
    done = "would go" if dry_run else "went"
    lines = [f"group {group.group.name}: {member.name} alone {done} back to {target.title}"]
    for one in conflicts[:_SHOWN]:
        who = " and ".join(one["writers"]) if one["writers"] else "somebody outside of the group"
        lines.append(f"CONFLICT {one['path']}: written by {who} since; it stays as it is")
    if len(conflicts) > _SHOWN:
        lines.append(f"and {len(conflicts) - _SHOWN} conflicts more")
    lines += [f"--- {member.name}", str(result["text"])]
    return {
        "group": group.group.name,
        "member": member.name,
        "title": target.title,
        "dry_run": dry_run,
        "conflicts": conflicts,
        "members": {member.name: dict(result)},
        "took_ms": (time.monotonic() - started) * 1e3,
        "text": "\n".join(lines),
    }
