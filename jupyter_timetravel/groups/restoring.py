"""Restoring a whole group: all of its members, or none.

First all are held and asked whether they can; then a safety record is written, together with the
note that a restore has begun; then each restores. If one fails, those before it go back to the
safety record. If the coordinator dies, the note tells the next request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from jupyter_timetravel.groups.errors import GroupFailed, MemberFailed
from jupyter_timetravel.groups.holding import NotAtRest, held
from jupyter_timetravel.groups.linking import RESTORE_S, Link, connect
from jupyter_timetravel.groups.opened import Opened, opened
from jupyter_timetravel.groups.taking import capture, new_record
from jupyter_timetravel.groups.telling import Say, announce, nobody
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store
from kernel_runtime.supervisor import faults
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.groups import GroupRecord, GroupRefused, Unfinished, resolve

_NOTHING: Final = "Nothing was changed, and nobody is held any more."


async def restore(
    store: Store,
    name: str,
    spec: str | None = None,
    *,
    undo: bool = False,
    dry_run: bool = False,
    allow_partial: bool = False,
    timeout: float = 120.0,
    say: Say = nobody,
) -> dict[str, Any]:
    """Bring all members back to a record, or none; the result is told in docs/groups.md.

    undo: to before the last restore of the group, without spec. allow_partial: also to an
    incomplete record; members that it does not hold stay. timeout: seconds until all must be at
    rest. say: is told how far it is. Raises UnknownGroup, GroupRefused, GroupFailed, StoreError.
    """
    started = time.monotonic()
    deadline = started + timeout
    async with opened(store, name, deadline) as group:
        target = _target(group, spec, undo)
        _check(group, target, allow_partial)
        members = [group.group.member(one) for one in target.members]
        links, problems = await connect(members)
        what = f"The group {name} was not restored to {target.title}"
        try:
            if problems:
                raise GroupFailed(what, problems, _NOTHING)
            async with held(links, deadline, say) as lease:
                say("asking each member what it would change")
                would = await _ask_all(links, target, what)
                if dry_run:
                    return _told(group, target, None, would, started, dry_run=True)
                safety = await _begin(group, links, target, lease, what, say)
                restored = await _carry_out(group, links, target, safety, lease, what, say)
                faults.point("group restored")
                await group.put(replace(group.group, unfinished=None, alone=()))
            await announce(links, name, target)
        except NotAtRest as error:
            raise GroupFailed(what, error.problems, _NOTHING) from None
        finally:
            await asyncio.gather(*(link.close() for link in links))
        return _told(group, target, safety, restored, started)


def _target(group: Opened, spec: str | None, undo: bool) -> GroupRecord:
    if (spec is None) != undo:
        raise BadRequest("Name one record of the group, or undo. Nothing was done.")
    if spec is not None:
        return resolve(group.records, spec)
    unfinished = group.group.unfinished
    safeties = [one for one in group.records if one.kind == "safety"]
    if unfinished is not None:
        safeties = [one for one in safeties if one.id == unfinished.safety]
    if not safeties:
        raise GroupRefused(
            f"The group {group.group.name} as a whole was not restored yet, so there is nothing to "
            "undo. Nothing was done."
        )
    return safeties[-1]


def _check(group: Opened, target: GroupRecord, allow_partial: bool) -> None:
    unfinished = group.group.unfinished
    if unfinished is not None and target.id not in (unfinished.record, unfinished.safety):
        group.refuse_unfinished()
    if not target.is_complete and not allow_partial:
        raise GroupRefused(
            f"{target.title} is incomplete: it does not hold "
            + "; ".join(f"{one} ({why})" for one, why in target.missing.items())
            + ". Nothing was changed; --allow-partial restores those that it holds."
        )
    known = {one.name for one in group.group.members}
    for name, kept in target.members.items():
        if name not in known:
            raise GroupRefused(
                f"{name} is no member any more, and {target.title} holds it. Nothing was changed; "
                "`jupyter timetravel group add` makes it one again, --member restores the others "
                "one by one."
            )
        if group.group.member(name).timeline != kept.timeline:
            raise GroupRefused(
                f"{name} is another session by now than the one that {target.title} holds. Nothing "
                f"was changed; --member restores the others one by one."
            )


async def _ask_all(
    links: Sequence[Link], target: GroupRecord, what: str
) -> dict[str, dict[str, Any]]:
    """What each would do. Raises GroupFailed if one cannot."""
    told = await asyncio.gather(
        *(
            link.restore(
                RestoreRequest(
                    target.members[link.name].checkpoint, keep_notebooks=True, dry_run=True
                )
            )
            for link in links
        ),
        return_exceptions=True,
    )
    found, problems = {}, []
    for link, one in zip(links, told):
        if isinstance(one, MemberFailed):
            problems.append(one)
        elif isinstance(one, BaseException):
            raise one
        else:
            found[link.name] = one
    if problems:
        raise GroupFailed(what, problems, _NOTHING)
    return found


async def _begin(
    group: Opened,
    links: Sequence[Link],
    target: GroupRecord,
    lease: str,
    what: str,
    say: Say,
) -> GroupRecord:
    """The safety record, and with it the note that a restore has begun.

    One that was cut short is finished, or taken back, under the note and the record that it made.
    """
    unfinished = group.group.unfinished
    if unfinished is not None:
        return next(one for one in group.records if one.id == unfinished.safety)
    comment = f"before the restore of {target.title}"
    said = f"group {group.group.name}: {comment}"
    found, problems = await capture(links, lease, said, time.monotonic() + RESTORE_S, say)
    if problems:
        raise GroupFailed(what, problems, _NOTHING)
    safety = new_record(group, "safety", comment, found)
    faults.point("group safety captured")
    await group.put(replace(group.group, unfinished=Unfinished(target.id, safety.id)), safety)
    faults.point("group safety recorded")
    return safety


async def _carry_out(
    group: Opened,
    links: Sequence[Link],
    target: GroupRecord,
    safety: GroupRecord,
    lease: str,
    what: str,
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Restore one after the other: the first brings the files that they share, for all of them.

    Raises GroupFailed; then they are as before, or the error says who is not.
    """
    done: dict[str, dict[str, Any]] = {}
    for number, link in enumerate(links):
        say(f"{link.name} goes back ({number + 1} of {len(links)})")
        try:
            done[link.name] = await _restore_one(link, target, lease)
        except MemberFailed as error:
            # who did not answer may have restored all the same
            back = list(links[: number + (error.reason == "not answering")])
            after = await _take_back(group, back, safety, lease)
            raise GroupFailed(what, [error], after) from error
        faults.point("group one restored")
    return done


async def _restore_one(link: Link, target: GroupRecord, lease: str | None = None) -> dict[str, Any]:
    """One member's restore to a record. Raises MemberFailed.

    The notebooks of the other members stay too: their front ends own them.
    """
    checkpoint = target.members[link.name].checkpoint
    return await link.restore(RestoreRequest(checkpoint, keep_notebooks=True, lease=lease))


async def _take_back(group: Opened, links: Sequence[Link], safety: GroupRecord, lease: str) -> str:
    """Bring these back to the safety record; what holds now, in a sentence."""
    problems: list[MemberFailed] = []
    for link in links:
        try:
            await _take_one_back(link, safety, lease)
        except MemberFailed as error:
            problems.append(error)
    if problems:
        assert group.group.unfinished is not None
        return (
            f"Not all that were restored could be taken back: {'; '.join(map(str, problems))}. "
            + group.unfinished_text(group.group.unfinished)
        )
    await group.put(replace(group.group, unfinished=None))
    if not links:
        return _NOTHING
    return f"{', '.join(link.name for link in links)} went back to before ({safety.title})."


async def _take_one_back(link: Link, safety: GroupRecord, lease: str) -> None:
    """Raises MemberFailed."""
    try:
        await _restore_one(link, safety, lease)
    except MemberFailed as error:
        if error.reason != "refused":
            raise
        # its hold may be what ended
        await link.release(lease)
        await _restore_one(link, safety)


def _told(
    group: Opened,
    target: GroupRecord,
    safety: GroupRecord | None,
    members: dict[str, dict[str, Any]],
    started: float,
    *,
    dry_run: bool = False,
) -> dict[str, Any]:
    name = group.group.name
    stay = [one.name for one in group.group.members if one.name not in target.members]
    who = ", ".join(members) if stay else "all"
    lines = [
        f"group {name}: {who} {'would go' if dry_run else 'went'} back to {target.title}"
        + (f" (before: {safety.title})" if safety is not None and safety.id != target.id else "")
    ]
    if stay:
        lines.append(f"as they are: {', '.join(stay)}; {target.title} does not hold them")
    lines += [f"--- {one}\n{result['text']}" for one, result in members.items()]
    return {
        "group": name,
        "record": target.as_json(),
        "safety": safety.as_json() if safety is not None else None,
        "dry_run": dry_run,
        "members": members,
        "took_ms": (time.monotonic() - started) * 1e3,
        "text": "\n".join(lines),
    }
