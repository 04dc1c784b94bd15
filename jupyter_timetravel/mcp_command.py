"""``jupyter timetravel mcp``: time travel for agents, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import sys

from kernel_runtime.errors import TimeTravelError

SUMMARY = "serve agents over the Model Context Protocol, on standard input and output"


class NoAgentServer(TimeTravelError):
    """The MCP server needs the package mcp, which is not installed: nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        default="python3-timetravel",
        help="the kernel that is started for a notebook without one (default: %(default)s)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="append the cells that agents run, with outputs, to notebooks that nobody has open",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until the client goes away. Raises NoAgentServer."""
    try:
        import mcp.server.mcpserver  # noqa: F401
    except ImportError as error:
        raise NoAgentServer(
            "The MCP server needs the package mcp, 2.0 or later, in the environment of "
            f"{sys.executable}. Nothing was started; pip install 'jupyter_timetravel[mcp]'."
        ) from error
    from jupyter_timetravel.agent_server.server import serve

    serve(args.kernel, args.write)
    return 0
