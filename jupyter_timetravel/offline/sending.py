"""``jupyter timetravel export``: a timeline, or one checkpoint, as one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.exchange.errors import ExportRefused
from jupyter_timetravel.exchange.writing import Exporter
from jupyter_timetravel.offline import stored
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "write a timeline, or one checkpoint, into one file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    parser.add_argument("checkpoint", metavar="N", nargs="?", help="only this one")
    parser.add_argument("-o", "--output", metavar="FILE.ttl", required=True, help="where to")
    parser.add_argument(
        "--no-environment", action="store_true", help="without files outside of the workspace"
    )
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Write it. Raises NoSuchSession, UnknownCheckpoint, ExportRefused: there is no file then."""
    target = Path(args.output)
    with stored.opened(args) as store:
        info = stored.find(store, args)
        stored.refuse_untrusted(info)
        session = stored.look(store, info)
        chosen = [session.checkpoint(args.checkpoint)] if args.checkpoint else [*session.timeline]
        if not chosen:
            raise ExportRefused(
                f"{one_line(session.notebook, 200)} has no checkpoint yet. No file was written; "
                "run a cell first."
            )
        with Progress(args):
            size = Exporter(session, chosen, environment=not args.no_environment).write(target)
    count = plural(len(chosen), "checkpoint")
    text = (
        f"{one_line(str(target), 200)}: {count}, {size_text(size)}\n"
        "It holds what the checkpoints hold: files, values of variables, and whatever secrets were "
        "among them. Memory of running processes is not in it."
    )
    told = {"file": str(target.absolute()), "checkpoints": len(chosen), "bytes": size}
    tell(args, text, {**told, "text": text})
    return 0
