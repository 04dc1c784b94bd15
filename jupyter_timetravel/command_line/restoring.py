"""``jupyter timetravel restore``: bring a checkpoint back, with a kernel or without."""

from __future__ import annotations

import argparse
import asyncio

from jupyter_timetravel.command_line.grouping import add_group, in_group, refuse_beside_group
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session, spec
from jupyter_timetravel.going_back import add_restore_options, going_back
from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.restore_request import OPTIONS, RestoreRequest

SUMMARY = (
    "bring a checkpoint back; without a running kernel its files, and the next one starts there"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True, newest=False)
    parser.set_defaults(refuse_usage=parser.error)
    parser.add_argument("checkpoint", metavar="N", nargs="?", help="number, label, comment, or -1")
    add_group(parser, "bring all members of this group back to a record of it: restore --group G N")
    parser.add_argument(
        "--member", metavar="NAME", help="with --group: this one alone; the others go on"
    )
    parser.add_argument(
        "--allow-partial",
        action="store_true",
        help="with --group: also to an incomplete record; who is not in it stays",
    )
    add_restore_options(parser)
    add_timeout(parser, 120.0)


def run(args: argparse.Namespace) -> int:
    """Restore. Raises UnknownCheckpoint, RestoreRefused and more: nothing was changed then."""
    if args.group is not None:
        return _group(args)
    if args.member is not None or args.allow_partial:
        raise BadRequest("--member and --allow-partial go with --group. Nothing was done.")
    if args.notebook is None:
        args.refuse_usage("name the NOTEBOOK, or a group with --group")  # exits with status 2
    if (args.checkpoint is None) != args.undo:
        raise BadRequest("Name one checkpoint N to go back to, or --undo. Nothing was done.")
    target = -1 if args.undo else spec(args.checkpoint)
    with session(args) as found, Progress(args, found):
        result = found.ask(going_back(target, args))
    tell(args, result["text"], result)
    return 0


def _group(args: argparse.Namespace) -> int:
    """Of a group the one word is the record."""
    from jupyter_timetravel import groups

    asked = {"undo": args.undo, "dry_run": args.dry_run}
    refuse_beside_group(
        args, checkpoint=None, kernel=None, vars=None, paths=None,
        **{name: getattr(RestoreRequest, name) for name in OPTIONS if name not in asked},
    )  # fmt: skip
    asked["timeout"] = args.timeout
    with Progress(args) as progress, in_group(args) as store:
        asked["say"] = progress.say
        if args.member is not None:
            if args.allow_partial:
                raise BadRequest("--allow-partial is for the whole group. Nothing was done.")
            work = groups.restore_member(store, args.group, args.member, args.notebook, **asked)
        else:
            work = groups.restore(
                store, args.group, args.notebook, allow_partial=args.allow_partial, **asked
            )
        result = asyncio.run(work)
    tell(args, result["text"], result)
    return 0
