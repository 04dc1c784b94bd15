"""``jupyter timetravel group``: sessions captured and restored together (docs/groups.md)."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from jupyter_timetravel.command_line.output import confirm, tell
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.tables import age_text, table
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store
from kernel_runtime.timeline.groups import Group, GroupRecord, check_name, without
from kernel_runtime.timeline.text import plural

SUMMARY = "sessions that are captured and restored together: make such groups, change, list, show"

_ACTIONS: Final = ("create", "add", "remove", "list", "show", "delete")
_HEAD: Final = ("RECORD", "MADE", "WHAT", "HOLDS")


def add_group(parser: argparse.ArgumentParser, help: str) -> None:
    """The option by which other commands are about a group."""
    parser.add_argument("--group", metavar="G", help=help)


def refuse_beside_group(args: argparse.Namespace, **unset: Any) -> None:
    """Raise BadRequest if an option is given that a group does not have."""
    for name, value in unset.items():
        if getattr(args, name) != value:
            raise BadRequest(
                f"--group does not go with {name.upper() if name == 'notebook' else '--' + name}. "
                "Nothing was done."
            )


@contextmanager
def in_group(args: argparse.Namespace) -> Iterator[Store]:
    """The store that keeps the group: the members' own. Raises StoreError, NoSuchSession."""
    with stored.opened(args) as store:
        yield store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=_ACTIONS, help="what to do")
    parser.add_argument("name", metavar="G", nargs="?", help="the group's name")
    parser.add_argument(
        "members",
        metavar="[NAME=]NOTEBOOK",
        nargs="*",
        help="create, add: a running session, as elsewhere, and how it is called in the group; "
        "remove: the member's name",
    )
    parser.add_argument("--yes", action="store_true", help="delete: do not ask")
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Do it. Raises UnknownGroup, GroupRefused, NoSuchKernel, StoreError: nothing was done then."""
    if (args.name is None) != (args.action == "list"):
        raise BadRequest("Name the group; `list` alone takes no name. Nothing was done.")
    if args.action in ("show", "delete", "list") and args.members:
        raise BadRequest(f"group {args.action} takes no members. Nothing was done.")
    if args.action in ("add", "remove") and not args.members:
        raise BadRequest(f"group {args.action}: name the members. Nothing was done.")
    if args.action == "list":
        return _list(args)
    if args.action == "show":
        return show(args, args.name)
    with in_group(args) as store:
        group = _changed(args, store)
    names = ", ".join(one.name for one in group.members) or "no members"
    text = f"group {group.name}: deleted" if args.action == "delete" else f"{group.name}: {names}"
    members = [{"name": one.name, "timeline": one.timeline} for one in group.members]
    tell(args, text, {"group": group.name, "members": members, "text": text})
    return 0


def _changed(args: argparse.Namespace, store: Store) -> Group:
    from jupyter_timetravel.groups.joining import members_of
    from jupyter_timetravel.groups.opened import opened
    from jupyter_timetravel.groups.telling import announce_members

    if args.action == "create":
        name = check_name(args.name, "group")
        made = store.groups.create(name, members_of(store, args.members))
        asyncio.run(announce_members(name, made.members))
        return made

    async def change() -> Group:
        async with opened(store, args.name, 0.0) as found:
            group = found.group
            if args.action == "delete":
                confirm(
                    args,
                    f"{group.name}: {plural(len(found.records), 'record')}. The members and their "
                    "checkpoints stay.",
                    "Nothing brings the records back.",
                )
                store.groups.delete(group)
                await announce_members(group.name, group.members)
                return group
            found.refuse_unfinished()
            if args.action == "add":
                more = members_of(store, args.members, group)
                await found.put(replace(group, members=(*group.members, *more)))
            else:
                await found.put(without(group, args.members))
            await announce_members(group.name, {*group.members, *found.group.members})
            return found.group

    return asyncio.run(change())


def _list(args: argparse.Namespace) -> int:
    with in_group(args) as store:
        found = [(group, store.groups.records(group)) for group in store.groups.all()]
    rows = [
        (
            group.name,
            ", ".join(one.name for one in group.members),
            plural(len(records), "record"),
            age_text(records[-1].created_at) if records else "",
        )
        for group, records in found
    ]
    text = table(("GROUP", "MEMBERS", "", "NEWEST"), rows) if rows else "no groups"
    told = [
        {"group": group.name, "members": [m.name for m in group.members], "records": len(records)}
        for group, records in found
    ]
    tell(args, text, {"groups": told})
    return 0


def show(args: argparse.Namespace, name: str) -> int:
    """Print where the members are, and the records."""
    from jupyter_timetravel import groups

    with in_group(args) as store:
        result = asyncio.run(groups.show(store, name))
        records = store.groups.records(store.groups.get(name))
    rows = [_cells(one) for one in records]
    text = result["text"] + (f"\n{table(_HEAD, rows)}" if rows else "\nno records")
    tell(args, text, {**result, "text": text})
    return 0


def _cells(record: GroupRecord) -> tuple[str, ...]:
    what = record.comment or ("safety" if record.kind == "safety" else "")
    if not record.is_complete:
        what = f"{what} INCOMPLETE: without {', '.join(record.missing)}".strip()
    at = record.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    holds = ", ".join(f"{name} #{one.number}" for name, one in record.members.items())
    return record.title, at, what, holds
