"""Capturing all members of a group at one moment: hold all, capture all, record, release all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Final

from jupyter_timetravel.groups.errors import GroupFailed, MemberFailed
from jupyter_timetravel.groups.holding import NotAtRest, held
from jupyter_timetravel.groups.linking import Link, connect, left
from jupyter_timetravel.groups.opened import Opened, opened
from jupyter_timetravel.groups.telling import Say, announce, nobody
from kernel_runtime.store.database import Store
from kernel_runtime.store.errors import StoreError
from kernel_runtime.supervisor import faults
from kernel_runtime.timeline.groups import GroupRecord, GroupRefused, Held, Kind
from kernel_runtime.timeline.model import check_text, new_id

_CAPTURE_S: Final = 2.0
"""Seconds beyond the limit within which captures that have begun may end."""


async def checkpoint(
    store: Store,
    name: str,
    comment: str = "",
    *,
    timeout: float = 120.0,
    allow_partial: bool = False,
    say: Say = nobody,
) -> dict[str, Any]:
    """Capture all members at one cell boundary; the result is told in docs/groups.md.

    timeout: seconds until all must be at rest; it ends 5 seconds after that at the latest.
    allow_partial: record those that could be captured, as an incomplete record. say: is told how
    far it is. Raises UnknownGroup, GroupRefused, GroupFailed, StoreError: then there is no record,
    and the checkpoints of members that were made are ordinary ones.
    """
    check_text(comment, "comment")
    started = time.monotonic()
    deadline = started + timeout
    async with opened(store, name, deadline) as group:
        group.refuse_unfinished()
        if not group.group.members:
            raise GroupRefused(f"The group {name} has no members. Nothing was done.")
        links, problems = await connect(group.group.members)
        try:
            record = await _take(group, links, problems, comment, deadline, allow_partial, say)
            await announce([link for link in links if link.name in record.members], name, record)
        finally:
            await asyncio.gather(*(link.close() for link in links))
        took = (time.monotonic() - started) * 1e3
        at = ", ".join(f"{one} at #{held.number}" for one, held in record.members.items())
        text = f"group {name}: {record.title} holds {at}"
        if record.missing:
            why = "; ".join(f"{one}: {reason}" for one, reason in record.missing.items())
            text += f". It is incomplete: {why}"
        return {"group": name, "record": record.as_json(), "took_ms": took, "text": text}


async def _take(
    group: Opened,
    links: Sequence[Link],
    problems: list[MemberFailed],
    comment: str,
    deadline: float,
    allow_partial: bool,
    say: Say,
) -> GroupRecord:
    what = f"The group {group.group.name} was not captured"
    if problems and not (allow_partial and links):
        raise GroupFailed(what, problems, _NOTHING)
    said = f"group {group.group.name}" + (f": {comment}" if comment.strip() else "")
    at_rest = list(links)
    while True:
        try:
            async with held(at_rest, deadline, say) as lease:
                found, failed = await capture(at_rest, lease, said, deadline + _CAPTURE_S, say)
                problems += failed
                if not found or (problems and not allow_partial):
                    raise GroupFailed(what, problems, await _not_completed(at_rest, found, said))
                record = new_record(group, "checkpoint", comment, found, problems)
                faults.point("group captured")
                await _put(group, record, at_rest, found, said)
                faults.point("group recorded")
                return record
        except NotAtRest as error:
            problems += error.problems
            if not allow_partial or not error.others:
                raise GroupFailed(what, problems, _NOTHING) from None
            # those that are at rest now, or nobody any more
            at_rest = error.others


_NOTHING: Final = "Nobody is held any more, and nothing was recorded."


async def _put(
    group: Opened,
    record: GroupRecord,
    links: Sequence[Link],
    found: Mapping[str, dict[str, Any]],
    said: str,
) -> None:
    """Raises GroupFailed where the store does not take it."""
    try:
        changed = group.group if record.missing else replace(group.group, alone=())
        await group.put(changed, record)
    except StoreError as error:
        why = MemberFailed("the group's record", "not stored", str(error))
        raise GroupFailed(
            f"The group {group.group.name} was not captured",
            [why],
            await _not_completed(links, found, said),
        ) from error


async def _not_completed(
    links: Sequence[Link], found: Mapping[str, dict[str, Any]], said: str
) -> str:
    """Say on the checkpoints that were made that they belong to no record; what holds now."""
    made = [link for link in links if link.name in found]
    if not made:
        return _NOTHING
    await asyncio.gather(
        *(
            link.ask(
                "comment",
                1.0,
                checkpoint=found[link.name]["checkpoint"]["id"],
                comment=f"{said} (not completed)",
            )
            for link in made
        ),
        return_exceptions=True,
    )
    names = ", ".join(f"{link.name} #{found[link.name]['checkpoint']['number']}" for link in made)
    return f"{_NOTHING} What was captured ({names}) stays as ordinary checkpoints."


async def capture(
    links: Sequence[Link], lease: str, comment: str, deadline: float, say: Say
) -> tuple[dict[str, dict[str, Any]], list[MemberFailed]]:
    """Make a checkpoint of each while all are held; results by member, and who could not.

    deadline: of the monotonic clock. A result counts only if its member was held all the time.
    """

    async def one(link: Link) -> dict[str, Any]:
        result = dict(await link.ask("checkpoint", left(deadline, 1.0), comment=comment))
        for part in result["checkpoint"]["captures"]:
            if part["state"] == "failed" and part["kind"] in ("process", "filesystem"):
                raise link.failed("not stored", str(part["error"]))
        if result["problem"]:
            raise link.failed("not stored", result["problem"])
        await link.check(lease)
        say(f"{link.name} is captured as #{result['checkpoint']['number']}")
        faults.point("group one captured")
        return result

    told = await asyncio.gather(*(one(link) for link in links), return_exceptions=True)
    found, problems = {}, []
    for link, answer in zip(links, told):
        if isinstance(answer, MemberFailed):
            problems.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[link.name] = answer
    return found, problems


def new_record(
    group: Opened,
    kind: Kind,
    comment: str,
    found: Mapping[str, dict[str, Any]],
    problems: Sequence[MemberFailed] = (),
) -> GroupRecord:
    """Of what ``capture`` gave, not written yet."""
    timelines = {one.name: one.timeline for one in group.group.members}
    return GroupRecord(
        new_id(),
        group.next_number,
        datetime.now(timezone.utc),
        kind,
        comment,
        {
            one: Held(timelines[one], told["checkpoint"]["id"], told["checkpoint"]["number"])
            for one, told in found.items()
        },
        {one.member: f"{one.reason}: {one.text}" for one in problems},
    )
