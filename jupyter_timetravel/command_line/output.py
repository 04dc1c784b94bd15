"""What a command says: text for people, or with ``--json`` one object for machines.

The object is described in docs/cli.md: ``version``, ``command``, ``status``, and beside them the
keys of the result, or ``ename`` and ``evalue``. Keys are only ever added.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from jupyter_timetravel.access.errors import NotConfirmed
from kernel_runtime.errors import TimeTravelError

VERSION: Final = 1

OK: Final = 0
FAILED: Final = 1
"""Refused, failed, or something was found damaged."""
USAGE: Final = 2
NO_ANSWER: Final = 3
"""The kernel did not answer in time; what was asked may still happen."""
NOT_CONFIRMED: Final = 4
"""It asks before it goes on, and there was nobody to ask or the answer was no."""
INTERRUPTED: Final = 130
CUT_SHORT: Final = 141
"""Whoever read the output has gone, as with `| head`."""


def tell(args: argparse.Namespace, text: str, result: Mapping[str, Any] | None = None) -> None:
    """Say it, once in a run. Without a result the text is the result."""
    if getattr(args, "json", False):
        told = {"text": text} if result is None else result
        print(json.dumps(done(args.command, told), indent=2))
    else:
        print(text)


def done(command: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The object of a command that did what it was to do."""
    return {"version": VERSION, "command": command, "status": "ok", **result}


def failed(command: str, error: Exception) -> dict[str, Any]:
    """The object of one that did not."""
    return {
        "version": VERSION,
        "command": command,
        "status": "error",
        "ename": type(error).__name__,
        "evalue": str(error),
    }


def tell_error(args: argparse.Namespace, error: TimeTravelError) -> int:
    """Say why not; return the exit status."""
    from jupyter_timetravel.wire import RequestTimeout  # slow to import, and seldom needed

    if getattr(args, "json", False):
        print(json.dumps(failed(args.command, error), indent=2))
    print(f"jupyter timetravel {args.command}: {error}", file=sys.stderr)
    if isinstance(error, RequestTimeout):
        return NO_ANSWER
    return NOT_CONFIRMED if isinstance(error, NotConfirmed) else FAILED


def confirm(args: argparse.Namespace, shown: str, question: str) -> None:
    """Go on only if a person types yes, or has said ``--yes``. Raises NotConfirmed."""
    if args.yes:
        return
    if getattr(args, "json", False) or not sys.stdin.isatty():
        raise NotConfirmed(f"{shown}\nNothing was done; --yes says that you mean it.")
    print(shown)
    if input(f"{question} Type yes to go on: ").strip() != "yes":
        raise NotConfirmed("Nothing was done.")
