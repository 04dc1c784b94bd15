"""The ``jupyter timetravel`` command. Each subcommand is a module with the shape of ``Command``.

argparse and not a traitlets application: nothing here is configured by files, and the help of a
subcommand should fit a screen.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

from jupyter_timetravel import doctor, install, mcp_command
from jupyter_timetravel.command_line import (
    checkpointing,
    completion,
    deleting,
    differing,
    kernels,
    listing,
    output,
    replaying,
    restoring,
    showing,
    status,
    verifying,
)
from jupyter_timetravel.offline import (
    adopting,
    checking,
    encrypting,
    exporting,
    importing,
    pruning,
    sending,
    sessions,
    trusting,
    usage,
)
from kernel_runtime.errors import TimeTravelError


class Command(Protocol):
    """One subcommand: a module that has these names."""

    SUMMARY: str  # one line, shown by --help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status. TimeTravelError is shown without a traceback."""


COMMANDS: Mapping[str, Command] = {
    "install": install,
    "doctor": doctor,
    "sessions": sessions,
    "du": usage,
    "check": checking,
    "kernels": kernels,
    "status": status,
    "list": listing,
    "show": showing,
    "diff": differing,
    "checkpoint": checkpointing,
    "restore": restoring,
    "replay": replaying,
    "verify": verifying,
    "delete": deleting,
    "prune": pruning,
    "adopt": adopting,
    "encrypt": encrypting,
    "export": sending,
    "import": importing,
    "trust": trusting,
    "export-notebook": exporting,
    "mcp": mcp_command,
    "completion": completion,
}

PLAIN: frozenset[str] = frozenset({"mcp", "completion"})
"""Those whose output is for a program already."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="jupyter timetravel", description="A Jupyter kernel that can go back."
    )
    parser.add_argument("--version", action="version", version=version("jupyter_timetravel"))
    subparsers = parser.add_subparsers(dest="command", metavar="command")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        command.add_arguments(subparser)
        if name not in PLAIN:
            subparser.add_argument(
                "--json", action="store_true", help="print one JSON object instead (docs/cli.md)"
            )
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``jupyter-timetravel``; returns the exit status, see docs/cli.md."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names in a terminal that has not theirs
    parser = build_parser()
    completion.complete(parser)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return output.USAGE
    try:
        found: int = args.run(args)
        sys.stdout.flush()
    except TimeTravelError as error:
        return output.tell_error(args, error)
    except KeyboardInterrupt:
        print(f"jupyter timetravel {args.command}: interrupted", file=sys.stderr)
        return output.INTERRUPTED
    except BrokenPipeError:
        # whoever reads has had enough; the interpreter must not complain about it once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output.CUT_SHORT
    return found
