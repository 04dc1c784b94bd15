"""``jupyter timetravel status``: where the session of a running kernel stands."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands, render
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.sessions import add_session, session

SUMMARY = "say where the session of a running kernel stands: memory, limits, settings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True, store=False)


def run(args: argparse.Namespace) -> int:
    """Print it. Raises NoSuchKernel, NotRunning."""
    with session(args) as found:
        result = found.ask(commands.status())
    tell(args, render.status_text(result), result)
    return 0
