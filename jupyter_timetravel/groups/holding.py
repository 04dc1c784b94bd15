"""Bringing all members of a group to a cell boundary together, and holding them there.

Nobody is held while somebody else is waited for: cells are let through until all are at rest at
once, so that a member which waits for another one is served. Held are all or none, in one order
for all coordinators, so two of them never wait for each other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from jupyter_timetravel.groups.errors import MemberFailed
from jupyter_timetravel.groups.linking import Link, left
from jupyter_timetravel.groups.telling import Say
from kernel_runtime.supervisor import faults
from kernel_runtime.timeline.model import new_id

_WAIT_S: Final = 1.0
_AGAIN_S: Final = 0.1
_WORDS: Final = {
    "busy": "a cell runs or waits, or a checkpoint is being made",
    "held": "another group request holds it",
    "ending": "it is shutting down",
}


class NotAtRest(Exception):
    """Some members could not be held in time; ``others`` can."""

    def __init__(self, problems: Sequence[MemberFailed], others: Sequence[Link]) -> None:
        super().__init__(*problems)
        self.problems = list(problems)
        self.others = list(others)


@asynccontextmanager
async def held(links: Sequence[Link], deadline: float, say: Say) -> AsyncIterator[str]:
    """Hold all for the length of the block; gives the lease.

    deadline: of the monotonic clock. say: is told who is waited for. Raises NotAtRest: then nobody
    is held.
    """
    lease = new_id()
    try:
        await _hold_all(links, lease, deadline, say)
        faults.point("group held")
        yield lease
    finally:
        await asyncio.gather(*(link.release(lease) for link in links))


async def _hold_all(links: Sequence[Link], lease: str, deadline: float, say: Say) -> None:
    ordered = sorted(links, key=lambda link: link.member.timeline)
    said = ""
    while True:
        wait = min(_WAIT_S, left(deadline))
        told = await asyncio.gather(*(link.rest(wait) for link in ordered), return_exceptions=True)
        problems = [_problem(link, one) for link, one in zip(ordered, told) if one is not None]
        if not problems and await _try(ordered, lease):
            return
        gone = [one for one in problems if one.reason in ("dead", "no process", "refused")]
        if gone or time.monotonic() >= deadline:
            problems = gone or problems
            names = {one.member for one in problems}
            if not problems:  # they were at rest in turn, never all at once
                problems = [ordered[0].failed("busy", "its cells and the others' never pause")]
            raise NotAtRest(problems, [link for link in ordered if link.name not in names])
        waiting = ", ".join(f"{one.member} ({one.reason})" for one in problems)
        if waiting and waiting != said:
            say(f"waiting for {waiting}")
            said = waiting
        await asyncio.sleep(_AGAIN_S * random.random())


async def _try(ordered: Sequence[Link], lease: str) -> bool:
    """Hold all, or none."""
    try:
        for link in ordered:
            if not await link.hold(lease):
                break
        else:
            return True
    except MemberFailed:
        pass  # the next look at it says why
    await asyncio.gather(*(link.release(lease) for link in ordered))
    return False


def _problem(link: Link, found: str | BaseException | None) -> MemberFailed:
    if isinstance(found, MemberFailed):
        return found
    if isinstance(found, BaseException):
        raise found
    reason = "held" if found == "held" else "busy"
    return link.failed(reason, _WORDS.get(str(found), str(found)))
