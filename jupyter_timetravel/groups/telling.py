"""How far a request for a group is, and who is told that something came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_timetravel.groups.linking import Link
    from kernel_runtime.timeline.groups import GroupRecord

Say = Callable[[str], None]
"""Takes one line about how far it is."""


def nobody(text: str) -> None:
    """For who does not ask."""


async def announce(links: Iterable[Link], group: str, record: GroupRecord) -> None:
    """Tell the members' front ends of a record, without a word; not waited for for long."""
    state = {"record": record.as_json()}
    await asyncio.gather(
        *(link.ask("tell", group=group, text="", state=state) for link in links),
        return_exceptions=True,
    )
