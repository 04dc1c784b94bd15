"""``jupyter timetravel checkpoint``: keep the present state of a running kernel."""

from __future__ import annotations

import argparse
import asyncio

from jupyter_timetravel import commands, render
from jupyter_timetravel.command_line.grouping import add_group, in_group, refuse_beside_group
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session
from jupyter_timetravel.offline.stored import add_store
from kernel_runtime.errors import BadRequest

SUMMARY = "keep the present state of a running kernel; a cell that runs is finished first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True, store=False)
    parser.add_argument("-m", "--comment", metavar="TEXT", default="", help="what this state is")
    parser.add_argument("--label", metavar="L", help="a name to restore it by")
    add_group(parser, "keep the present state of all members of this group, at one moment")
    add_store(parser)
    parser.add_argument(
        "--allow-partial",
        action="store_true",
        help="with --group: keep those that can be, as an incomplete record",
    )
    parser.add_argument("--pin", action="store_true", help="never evict or delete it")
    add_timeout(parser, 120.0)


def run(args: argparse.Namespace) -> int:
    """Make it. Raises NotRunning, CheckpointRefused, RequestTimeout; GroupFailed for a group."""
    if args.group is not None:
        return _group(args)
    if args.allow_partial:
        raise BadRequest("--allow-partial goes with --group. Nothing was done.")
    if args.store is not None:
        raise BadRequest(
            "--store and --docker go with --group: a checkpoint is made by a kernel that runs, in "
            "its own store. Nothing was done."
        )
    with session(args) as found, Progress(args, found):
        result = found.ask(commands.checkpoint(args.comment, args.label, args.pin))
    text = render.checkpoint_text(result["checkpoint"], result["pause_ms"], result["problem"])
    tell(args, text, result)
    return 0


def _group(args: argparse.Namespace) -> int:
    from jupyter_timetravel import groups

    refuse_beside_group(args, notebook=None, kernel=None, label=None, pin=False)
    with Progress(args) as progress, in_group(args) as store:
        result = asyncio.run(
            groups.checkpoint(
                store,
                args.group,
                args.comment,
                timeout=args.timeout,
                allow_partial=args.allow_partial,
                say=progress.say,
            )
        )
    tell(args, result["text"], result)
    return 0
