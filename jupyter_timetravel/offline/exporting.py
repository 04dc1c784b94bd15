"""``jupyter timetravel export-notebook``: the cells that lead to a state, as a clean notebook."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from jupyter_timetravel import clean
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.cells import from_fresh

SUMMARY = "write the cells that lead from a fresh kernel to a checkpoint as a notebook"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    parser.add_argument("output", metavar="FILE.ipynb", help="the notebook to write")
    stored.add_store(parser)
    parser.add_argument(
        "--checkpoint", metavar="N", help="where they lead (default: where the session is)"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run it in the kernel python3, with all that its cells do, and compare the variables",
    )


def run(args: argparse.Namespace) -> int:
    """Write it. Raises NoSuchSession, UnknownCheckpoint, CleanExportRefused."""
    with stored.opened(args) as store:
        session = stored.look(store, stored.find(store, args))
        timeline = session.timeline
        end = session.checkpoint(args.checkpoint) if args.checkpoint else timeline.head
        if end is None:
            raise BadRequest(f"{session.notebook} has no checkpoints. Nothing was done.")
        cells = [placed.record() for placed in from_fresh(timeline, end.id)]
        present = dict(end.variables) if args.check else None
    text = clean.export(Path(args.output), cells, present, force=args.force)
    tell(args, text, {"file": os.path.abspath(args.output), "text": text})
    return 0
