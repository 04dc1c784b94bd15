"""``jupyter timetravel checkpoint``: keep the present state of a running kernel."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands, render
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session

SUMMARY = "keep the present state of a running kernel; a cell that runs is finished first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True, store=False)
    parser.add_argument("-m", "--comment", metavar="TEXT", default="", help="what this state is")
    parser.add_argument("--label", metavar="L", help="a name to restore it by")
    parser.add_argument("--pin", action="store_true", help="never evict or delete it")
    add_timeout(parser, 120.0)


def run(args: argparse.Namespace) -> int:
    """Make it. Raises NotRunning, CheckpointRefused, RequestTimeout."""
    with session(args) as found, Progress(args, found):
        result = found.ask(commands.checkpoint(args.comment, args.label, args.pin))
    text = render.checkpoint_text(result["checkpoint"], result["pause_ms"], result["problem"])
    tell(args, text, result)
    return 0
