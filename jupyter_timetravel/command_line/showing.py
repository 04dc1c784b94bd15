"""``jupyter timetravel show``: one checkpoint, what it holds and what it does not.

From the records alone: nothing of a namespace is loaded, whoever made it.
"""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands, render
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.sessions import add_session, session, spec

SUMMARY = "say what a checkpoint holds, and what it does not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser)
    parser.add_argument("checkpoint", metavar="N", help="number, label, comment, or -1")


def run(args: argparse.Namespace) -> int:
    """Print it. Raises NoSuchSession, UnknownCheckpoint."""
    with session(args) as found:
        result = found.ask(commands.get(spec(args.checkpoint)))
    text = render.details_text(result)
    if fits := result.get("restorable_here"):
        text = "\n".join([text, "  restorable here", *(f"    {line}" for line in fits)])
    tell(args, text, result)
    return 0
