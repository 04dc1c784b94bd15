"""``jupyter timetravel replay``: go back and run the cells after a checkpoint again."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands
from jupyter_timetravel.command_line.output import confirm, tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session, spec
from jupyter_timetravel.going_back import add_replay_options

SUMMARY = "go back to a checkpoint of a running kernel, and run the cells after it again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, store=False)
    parser.add_argument("checkpoint", metavar="N", help="where to begin: number, label, or -1")
    add_replay_options(parser)
    parser.add_argument(
        "--yes", action="store_true", help="do not ask about effects that would happen again"
    )
    add_timeout(parser, 3600.0)


def run(args: argparse.Namespace) -> int:
    """Replay. Raises NotRunning, UnknownCheckpoint, NotConfirmed: then nothing was run."""
    skip = [spec(part) for given in args.skip for part in given.split(",") if part]
    until = None if args.until is None else spec(args.until)
    which = (spec(args.checkpoint), skip, until, args.stop_on_difference)
    with session(args) as found:
        result = found.ask(commands.replay(*which, dry_run=True))
        if not args.dry_run:
            if result["effects"]:
                confirm(args, result["text"], "These effects may happen again.")
            with Progress(args, found):
                result = found.ask(commands.replay(*which))
    tell(args, result["text"], result)
    return int(result["stopped"] is not None)
