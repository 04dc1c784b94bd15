"""The paths of groups: several sessions captured, and restored, as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jupyter_server.auth.decorator import authorized
from tornado import web

from jupyter_timetravel.server.answering import TimeTravelHandler, may_execute
from jupyter_timetravel.server.live import Tell


class GroupsHandler(TimeTravelHandler):
    """All groups."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """As the store has them; no kernel is asked."""
        rows = await self.extension.groups.listing(**self.query("groups"))
        self.answer({"groups": rows})

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Make one of sessions of this server."""
        self.query("group_create")
        args = self.body("group_create")
        made = self.extension.groups.create(args["group"], args["members"])
        self.answer(await self.extension.to_the_end(made), 201)


class GroupHandler(TimeTravelHandler):
    """One group."""

    @web.authenticated
    @authorized
    async def get(self, group: str) -> None:
        """Where its members are, and its records."""
        self.query("group")
        self.answer(await self.extension.groups.show(group))


class GroupCheckpointsHandler(TimeTravelHandler):
    """Capturing a group."""

    @web.authenticated
    @authorized
    async def post(self, group: str) -> None:
        """All members at one moment, once all are at rest."""
        self.query("group_checkpoint")
        args = self.body("group_checkpoint")

        async def work(tell: Tell | None) -> Mapping[str, Any]:
            made: Mapping[str, Any] = await self.extension.groups.checkpoint(group, args, tell)
            return made

        await self.operate(work, 201)


class GroupRestoreHandler(TimeTravelHandler):
    """Taking a group back."""

    @web.authenticated
    @may_execute
    async def post(self, group: str) -> None:
        """All members, or one of them."""
        self.query("group_restore")
        args = self.body("group_restore")

        async def work(tell: Tell | None) -> Mapping[str, Any]:
            done: Mapping[str, Any] = await self.extension.groups.restore(group, args, tell)
            return done

        await self.operate(work)


_GROUP: Final = r"/groups/(?P<group>[^/]+)"

HANDLERS: Final[list[tuple[Any, ...]]] = [
    ("/groups", GroupsHandler),
    (_GROUP, GroupHandler),
    (f"{_GROUP}/checkpoints", GroupCheckpointsHandler),
    (f"{_GROUP}/restore", GroupRestoreHandler),
]
