"""The ``jupyter timetravel`` command. Each subcommand is a module with the shape of ``Command``.

argparse and not a traitlets application: nothing here is configured by files, and the help of a
subcommand should fit a screen.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final, Protocol, cast

from jupyter_timetravel.command_line import completion, output
from jupyter_timetravel.given_once import GivenFully, once
from kernel_runtime.errors import TimeTravelError


class Command(Protocol):
    """One subcommand: a module that has these names."""

    SUMMARY: str  # one line, shown by --help

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status. TimeTravelError is shown without a traceback."""


class Commands(Mapping[str, Command]):
    """By name, each imported when it is wanted: a shell's prompt does not wait for all of them."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def __getitem__(self, name: str) -> Command:
        return cast(Command, import_module(f"jupyter_timetravel.{self._modules[name]}"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


COMMANDS: Final = Commands(
    {
        "install": "install",
        "doctor": "doctor",
        "sessions": "offline.sessions",
        "du": "offline.usage",
        "check": "offline.checking",
        "kernels": "command_line.kernels",
        "status": "command_line.status",
        "list": "command_line.listing",
        "show": "command_line.showing",
        "diff": "command_line.differing",
        "checkpoint": "command_line.checkpointing",
        "restore": "command_line.restoring",
        "replay": "command_line.replaying",
        "group": "command_line.grouping",
        "verify": "command_line.verifying",
        "delete": "command_line.deleting",
        "prune": "offline.pruning",
        "redact": "redaction.redact_command",
        "adopt": "offline.adopting",
        "encrypt": "offline.encrypting",
        "export": "offline.sending",
        "import": "offline.importing",
        "trust": "offline.trusting",
        "push": "remote.push_command",
        "pull": "remote.pull_command",
        "remote": "remote.remote_command",
        "export-notebook": "offline.exporting",
        "mcp": "mcp_command",
        "completion": "command_line.completion",
    }
)
"""Modules below jupyter_timetravel."""

PLAIN: Final = frozenset({"mcp", "completion"})
"""Those whose output is for a program already."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line, or of one command of it."""
    parser = argparse.ArgumentParser(
        prog="jupyter timetravel", description="A Jupyter kernel that can go back."
    )
    parser.add_argument("--version", action="version", version=version("jupyter_timetravel"))
    subparsers = parser.add_subparsers(dest="command", metavar="command")
    for name in COMMANDS if only is None else [only]:
        command = COMMANDS[name]
        subparser = subparsers.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        once(subparser, GivenFully)
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
    given = sys.argv[1:] if argv is None else argv
    parser = build_parser(given[0] if given and given[0] in COMMANDS else None)
    completion.complete(parser)
    args = parser.parse_args(given)
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
