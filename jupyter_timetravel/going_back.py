"""What may stand behind ``%restore``, ``%replay`` and the commands of these names at a shell, and
what it asks for."""

from __future__ import annotations

import argparse
from typing import Any

from jupyter_timetravel import commands
from jupyter_timetravel.commands import Command
from kernel_runtime.errors import BadRequest
from kernel_runtime.supervisor.restore_request import OPTIONS, RestoreRequest
from kernel_runtime.timeline.names import Spec


def add_restore_options(parser: argparse.ArgumentParser) -> None:
    """All but the checkpoint."""
    parser.add_argument(
        "--only", choices=("process", "files"), help="leave the other part as it is"
    )
    parser.add_argument(
        "--vars",
        metavar="A,B",
        help="bring these variables into the present, leave all else as it is",
    )
    parser.add_argument(
        "--paths",
        nargs="+",
        metavar="PATH",
        help="bring these files and directories of the workspace into the present, leave all else "
        "as it is",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what it would change, change nothing"
    )
    parser.add_argument(
        "--undo", action="store_true", help="without N: go back to before the last restore"
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
        help="also where some of it is damaged, or (of a checkpoint that was imported or pulled) "
        "cannot be loaded on this machine: bring the rest",
    )
    parser.add_argument(
        "--reseed",
        action="store_true",
        help="seed generators of random numbers anew (random, numpy, torch), so that they differ "
        "from those of another restore",
    )


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """All but the checkpoint."""
    parser.add_argument(
        "--skip", nargs="+", default=[], metavar="N", help="leave the cells of these out; also N-M"
    )
    parser.add_argument("--until", metavar="N", help="the last one (default: the present)")
    parser.add_argument(
        "--stop-on-difference",
        action="store_true",
        help="stop after the first cell that comes out differently: its error, or its result",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say which cells it would run, run none"
    )


def going_back(target: Spec, args: argparse.Namespace) -> Command[Any]:
    """The command that the options say. Raises BadRequest for those that do not go together."""
    which = "vars" if args.vars is not None else "paths" if args.paths is not None else None
    if which is None:
        return commands.restore(
            RestoreRequest(target, **{name: getattr(args, name) for name in OPTIONS})
        )
    given = [name for name in OPTIONS if getattr(args, name)]
    if which == "vars" and args.paths is not None:
        given = ["paths"]
    if given:
        option = given[0].replace("_", "-")
        raise BadRequest(
            f"--{which} goes with a checkpoint alone, not with --{option}. Nothing was done."
        )
    if which == "paths":
        return commands.bring_files(target, [commands.absolute_path(path) for path in args.paths])
    return commands.bring(target, [name.strip() for name in args.vars.split(",") if name.strip()])
