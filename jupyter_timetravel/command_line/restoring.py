"""``jupyter timetravel restore``: bring a checkpoint back, with a kernel or without."""

from __future__ import annotations

import argparse

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session, spec
from jupyter_timetravel.going_back import add_restore_options, going_back
from kernel_runtime.errors import BadRequest

SUMMARY = (
    "bring a checkpoint back; without a running kernel its files, and the next one starts there"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser)
    parser.add_argument("checkpoint", metavar="N", nargs="?", help="number, label, comment, or -1")
    add_restore_options(parser)
    add_timeout(parser, 120.0)


def run(args: argparse.Namespace) -> int:
    """Restore. Raises UnknownCheckpoint, RestoreRefused and more: nothing was changed then."""
    if (args.checkpoint is None) != args.undo:
        raise BadRequest("Name one checkpoint N to go back to, or --undo. Nothing was done.")
    target = -1 if args.undo else spec(args.checkpoint)
    with session(args) as found, Progress(args, found):
        result = found.ask(going_back(target, args))
    tell(args, result["text"], result)
    return 0
