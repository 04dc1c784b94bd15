"""The ``jupyter timetravel`` command. Each subcommand is a module with the shape of ``Command``.

argparse and not a traitlets application: nothing here is configured by files, and the help of a
subcommand should fit a screen.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

from jupyter_timetravel import doctor, install
from jupyter_timetravel.offline import (
    adopting,
    checking,
    differences,
    encrypting,
    exporting,
    importing,
    listing,
    pruning,
    restoring,
    sending,
    sessions,
    showing,
    trusting,
    usage,
    verifying,
)
from jupyter_timetravel.remote import pull_command, push_command, remote_command
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
    "list": listing,
    "show": showing,
    "diff": differences,
    "restore": restoring,
    "verify": verifying,
    "prune": pruning,
    "adopt": adopting,
    "encrypt": encrypting,
    "export": sending,
    "import": importing,
    "trust": trusting,
    "push": push_command,
    "pull": pull_command,
    "remote": remote_command,
    "export-notebook": exporting,
}


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
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``jupyter-timetravel``; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names in a terminal that has not theirs
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        status: int = args.run(args)
    except TimeTravelError as error:
        print(f"jupyter timetravel {args.command}: {error}", file=sys.stderr)
        return 1
    return status
