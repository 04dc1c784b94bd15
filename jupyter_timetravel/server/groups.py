"""Groups of sessions, as a server carries out what is asked of them (docs/groups.md).

What asks kernels works on a loop and a thread of its own: it waits for long, and speaks to members
as the command line does, whoever started their kernels.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from jupyter_timetravel import groups
from jupyter_timetravel.groups.joining import NAMED, members_of
from jupyter_timetravel.groups.showing import group_row
from jupyter_timetravel.groups.telling import Say, announce_members
from jupyter_timetravel.offline.stored import NotRunning
from jupyter_timetravel.server import store as stores
from jupyter_timetravel.server.live import LiveSession, Tell
from jupyter_timetravel.server.sessions import Sessions
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import check_name

Row = dict[str, Any]
Work = Callable[[Store, Say], Coroutine[Any, Any, Row]]

LONGEST_S: Final = 3600.0
"""Seconds that a request waits at most until all members are at rest."""
_WAIT_S: Final = 120.0


class Groups:
    """The groups in the store of the user who runs the server."""

    def __init__(self, sessions: Sessions, kernel_manager: Any) -> None:
        self._sessions = sessions
        self._kernel_manager = kernel_manager

    async def listing(self, session: str | None = None) -> list[Row]:
        """All of them; with ``session`` those that it is a member of. Raises NoSuchSession."""
        if session is None:
            return await stores.in_thread(_rows)
        timeline = (await self._sessions.describe(session))["timeline"]
        return [
            row
            for row in await stores.in_thread(_rows)
            if any(one["timeline"] == timeline for one in row["members"])
        ]

    async def show(self, name: str) -> Row:
        """One group, with where its members are. Raises UnknownGroup."""
        return await _carried_out(lambda store, _: groups.show(store, name), None)

    async def create(self, name: str, members: Sequence[str]) -> Row:
        """Make a group. members: ``[NAME=]SESSION``, a kernel's id or a path of the server.

        Raises NoSuchSession, NotRunning, GroupRefused.
        """
        name = check_name(name, "group")
        found = [await self._place(text) for text in members]
        return await stores.in_thread(_create, name, found)

    async def checkpoint(self, name: str, args: Mapping[str, Any], tell: Tell | None) -> Row:
        """Capture all members at one moment. Raises UnknownGroup, GroupRefused, GroupFailed."""
        asked = {"timeout": _WAIT_S, **args}

        def work(store: Store, say: Say) -> Coroutine[Any, Any, Row]:
            return groups.checkpoint(store, name, say=say, **asked)

        return await _carried_out(work, tell)

    async def restore(self, name: str, args: Mapping[str, Any], tell: Tell | None) -> Row:
        """Restore all members, or one. Raises UnknownGroup, GroupRefused, GroupFailed."""
        asked = {"timeout": _WAIT_S, **args}
        record, member = asked.pop("record", None), asked.pop("member", None)
        if (record is None) != bool(asked.get("undo")):
            raise BadRequest("Give the record, or undo. Nothing was done.")
        if member is not None and asked.pop("allow_partial", False):
            raise BadRequest("allow_partial is for the whole group. Nothing was done.")

        def work(store: Store, say: Say) -> Coroutine[Any, Any, Row]:
            if member is not None:
                return groups.restore_member(store, name, member, record, say=say, **asked)
            return groups.restore(store, name, record, say=say, **asked)

        return await _carried_out(work, tell)

    async def _place(self, text: str) -> str:
        """The same with the connection file of the session's kernel.

        Only kernels of this server: whoever asks does not name files of the machine.
        """
        named = NAMED.fullmatch(text)
        name, target = (f"{named[1]}=", named[2]) if named else ("", text)
        id = await self._sessions.kernel_of(target)
        found = await self._sessions.find(id or target)
        if not isinstance(found, LiveSession):
            raise NotRunning(
                f"No kernel of this server runs for {target[:200]}. Nothing was done; open its "
                "notebook first."
            )
        place = str(getattr(self._kernel_manager.get_kernel(found.id), "connection_file", ""))
        if not os.path.isfile(place):
            raise NotRunning(
                f"The kernel of {target[:200]} does not run on this machine. Nothing was done; "
                "members of a group are reached by their connection files."
            )
        return name + place


def _rows() -> list[Row]:
    if not stores.has_store():
        return []
    with stores.opened() as store:
        return [group_row(group, store.groups.records(group)) for group in store.groups.all()]


def _create(name: str, members: Sequence[str]) -> Row:
    with stores.opened() as store:
        made = store.groups.create(name, members_of(store, members))
    asyncio.run(announce_members(name, made.members))
    return group_row(made, ())


async def _carried_out(work: Work, tell: Tell | None) -> Row:
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        if tell is not None:
            loop.call_soon_threadsafe(tell, {"type": "info", "text": text})

    def carry_out() -> Row:
        with stores.opened() as store:
            return asyncio.run(work(store, say))

    # not the pool that everything else shares: it may wait for an hour
    pool = ThreadPoolExecutor(1, thread_name_prefix="timetravel-group")
    try:
        return await loop.run_in_executor(pool, carry_out)
    finally:
        pool.shutdown(wait=False)
