"""``jupyter timetravel completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
import os

from kernel_runtime.errors import TimeTravelError

SUMMARY = "print what bash, zsh or fish needs to complete these commands"

PROGRAMS = ("jupyter", "jupyter-timetravel")


class NoCompletion(TimeTravelError):
    """Completion needs the package argcomplete, which is not installed: nothing was done."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Print it. Raises NoCompletion."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        raise NoCompletion(
            "Completion needs argcomplete. Nothing was done; pip install argcomplete."
        ) from error
    print(shellcode(list(PROGRAMS), shell=args.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end; else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:  # set by the shell, never else
        return
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)
