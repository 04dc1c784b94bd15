"""The tools for groups of kernels: agents that share a workspace go back together."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final

import anyio
from pydantic import Field

from jupyter_timetravel import groups
from jupyter_timetravel.agent_server.answers import Told
from jupyter_timetravel.command_line.grouping import in_group
from jupyter_timetravel.groups.joining import members_of
from jupyter_timetravel.groups.telling import announce_members
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import check_name

WAIT_S: Final = 60.0

Name = Annotated[str, Field(description="The group's name")]
Seconds = Annotated[
    float, Field(gt=0, le=86_400, description="How long to wait until all members are at rest")
]


class GroupTools:
    """The tools. They reach members by their connection files, whoever started them."""

    async def group_create(
        self,
        group: Name,
        members: Annotated[
            list[str],
            Field(description="Notebooks or kernels that run, each as path or NAME=path"),
        ],
    ) -> Told:
        """Make a group of running kernels that are captured and restored together."""
        with _store() as store:
            name = check_name(group, "group")
            found = await anyio.to_thread.run_sync(members_of, store, members)
            made = store.groups.create(name, found)
        await announce_members(name, made.members)
        names = [one.name for one in made.members]
        return Told(f"{name}: {', '.join(names)}", {"group": name, "members": names})

    async def group_show(self, group: Name) -> Told:
        """Where the members of a group are, and its records."""
        with _store() as store:
            return _told(await groups.show(store, group))

    async def group_checkpoint(
        self,
        group: Name,
        comment: Annotated[str, Field(description="What this state is")] = "",
        allow_partial: Annotated[
            bool, Field(description="Record those that can be captured, as incomplete")
        ] = False,
        timeout_s: Seconds = WAIT_S,
    ) -> Told:
        """Keep the state of all members at one moment, between cells.

        Cells that run are finished first, and members that wait for each other are served. If one
        member cannot do its part, it is named with the reason, and nothing is recorded.
        """
        with _store() as store:
            made = await groups.checkpoint(
                store, group, comment, timeout=timeout_s, allow_partial=allow_partial
            )
        return _told(made)

    async def group_restore(
        self,
        group: Name,
        record: Annotated[
            str | None, Field(description="G3, -1 for the newest, a comment or an id")
        ] = None,
        member: Annotated[
            str | None, Field(description="This member alone; the others go on as they are")
        ] = None,
        undo: Annotated[
            bool, Field(description="Without record: go back to before the last restore")
        ] = False,
        dry_run: Annotated[bool, Field(description="Only say what it would change")] = False,
        timeout_s: Seconds = WAIT_S,
    ) -> Told:
        """Take all members back to a record of the group, or none of them.

        With member, that one alone: files of a shared folder that others have written too are named
        as conflicts, and stay as they are.
        """
        if (record is None) != undo:
            raise BadRequest("Name a record, or say undo=true. Nothing was done.")
        more: dict[str, Any] = {"undo": undo, "dry_run": dry_run, "timeout": timeout_s}
        with _store() as store:
            if member is not None:
                return _told(await groups.restore_member(store, group, member, record, **more))
            return _told(await groups.restore(store, group, record, **more))


def _store() -> AbstractContextManager[Store]:
    """The one that $JUPYTER_TIMETRAVEL_STORE names, or the user's."""
    return in_group(argparse.Namespace(store=None))


def _told(result: dict[str, Any]) -> Told:
    return Told(result["text"], result)
