"""``jupyter timetravel diff``: what happened between two checkpoints, or from one to now."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.sessions import add_session, session, spec
from kernel_runtime.timeline.report import diff_text, title

SUMMARY = "say what happened from one checkpoint to another, or to now"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser)
    parser.add_argument("a", metavar="A", help="number, label, comment, or -1 for the newest")
    parser.add_argument(
        "b", metavar="B", nargs="?", help="likewise; without it: now, without a kernel the files"
    )


def run(args: argparse.Namespace) -> int:
    """Print the differences. Raises NoSuchSession, UnknownCheckpoint."""
    given = [spec(text) for text in (args.a, args.b) if text is not None]
    with session(args) as found:
        result = found.ask(commands.diff(*given))
        names = [title(found.ask(commands.get(one))["checkpoint"]) for one in given]
    tell(args, diff_text(names[0], names[1] if len(names) == 2 else "now", result), result)
    return 0
