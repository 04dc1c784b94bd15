"""``jupyter timetravel verify``: load what is on the disk for real, and compare."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session, spec

SUMMARY = "load the variables that are on the disk for real, in a scratch process, and compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True)
    parser.add_argument(
        "checkpoint", metavar="N", nargs="?", help="number, label, comment, or -1 (default: all)"
    )
    add_timeout(parser, 3600.0)


def run(args: argparse.Namespace) -> int:
    """Verify; 1 if something did not hold. Raises SessionInUse, UnknownCheckpoint."""
    with session(args) as found, Progress(args, found):
        target = None if args.checkpoint is None else spec(args.checkpoint)
        result = found.ask(commands.verify(target))
    tell(args, result["text"], result)
    return int(any(one["problems"] for one in result["verified"]))
