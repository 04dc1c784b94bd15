"""``jupyter timetravel show``: one checkpoint, what it holds and what it does not.

From the records alone: nothing of a namespace is loaded, whoever made it.
"""

from __future__ import annotations

import argparse
import json

from jupyter_timetravel import render
from jupyter_timetravel.offline import stored
from jupyter_timetravel.remote import fit

SUMMARY = "say what a checkpoint holds, and what it does not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    parser.add_argument("checkpoint", metavar="N", help="number, label, comment, or -1")
    stored.add_store(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Print it. Raises NoSuchSession, UnknownCheckpoint."""
    with stored.opened(args) as store:
        session = stored.look(store, stored.find(store, args))
        checkpoint = session.checkpoint(args.checkpoint)
        result = {
            "checkpoint": session.timeline.record(checkpoint),
            "variables": {name: dict(one) for name, one in checkpoint.variables.items()},
        }
        fits = fit.lines_here(checkpoint, store.directory)
    if args.json:
        print(json.dumps({**result, "restorable_here": fits}, indent=2))
        return 0
    print(render.details_text(result))
    if fits:
        print("  restorable here")
        print("\n".join(f"    {line}" for line in fits))
    return 0
