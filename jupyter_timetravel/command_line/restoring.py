"""``jupyter timetravel restore``: bring a checkpoint back, with a kernel or without."""

from __future__ import annotations

import argparse

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.command_line.sessions import add_session, add_timeout, session, spec
from kernel_runtime.errors import BadRequest

SUMMARY = (
    "bring a checkpoint back; without a running kernel its files, and the next one starts there"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser)
    parser.add_argument("checkpoint", metavar="N", nargs="?", help="number, label, comment, or -1")
    parser.add_argument("--dry-run", action="store_true", help="say what it would change")
    parser.add_argument(
        "--undo", action="store_true", help="without N: go back to before the last restore"
    )
    parser.add_argument(
        "--only", choices=("process", "files"), help="leave the other part as it is"
    )
    parser.add_argument(
        "--vars",
        metavar="A,B",
        help="bring these variables into the present, leave all else as it is",
    )
    parser.add_argument(
        "--force", action="store_true", help="end a process that cannot be interrupted"
    )
    parser.add_argument(
        "--compensate",
        action="store_true",
        help="first run what the cells in between have registered with compensate()",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="also where some of it is damaged or cannot be loaded here: bring the rest",
    )
    parser.add_argument(
        "--reseed",
        action="store_true",
        help="seed generators of random numbers anew (random, numpy, torch)",
    )
    add_timeout(parser, 120.0)


def run(args: argparse.Namespace) -> int:
    """Restore. Raises UnknownCheckpoint, RestoreRefused and more: nothing was changed then."""
    if (args.checkpoint is None) != args.undo:
        raise BadRequest("Name one checkpoint N to go back to, or --undo. Nothing was done.")
    target = -1 if args.undo else spec(args.checkpoint)
    with session(args) as found, Progress(args, found):
        if args.vars is not None:
            if args.undo or args.only or args.dry_run or args.force or args.compensate:
                raise BadRequest("--vars goes with a checkpoint alone. Nothing was done.")
            names = [name.strip() for name in args.vars.split(",") if name.strip()]
            result = found.bring(target, names)
        else:
            result = found.restore(
                target,
                args.only,
                args.dry_run,
                args.undo,
                args.force,
                args.compensate,
                args.partial,
                args.reseed,
            )
    tell(args, result["text"], result)
    return 0
