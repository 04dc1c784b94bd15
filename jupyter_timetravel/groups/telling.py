"""How far a request for a group is, and who is told that something came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from jupyter_timetravel.groups.linking import Link, connect
from kernel_runtime.timeline.groups import GroupRecord, Member

_TELL_S: Final = 1.0

Say = Callable[[str], None]
"""Takes one line about how far it is."""


def nobody(text: str) -> None:
    """For who does not ask."""


async def announce(links: Iterable[Link], group: str, record: GroupRecord) -> None:
    """Tell the members' front ends of a record, without a word; not waited for for long."""
    await _tell(links, group, {"record": record.as_json()})


async def announce_members(group: str, members: Iterable[Member]) -> None:
    """Tell the front ends of these that they are members now, or no more."""
    links, _ = await connect(members)
    try:
        await _tell(links, group, {})
    finally:
        await asyncio.gather(*(link.close() for link in links))


async def _tell(links: Iterable[Link], group: str, state: dict[str, Any]) -> None:
    await asyncio.gather(
        *(link.ask("tell", _TELL_S, group=group, text="", state=state) for link in links),
        return_exceptions=True,
    )
