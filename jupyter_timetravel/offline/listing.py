"""``jupyter timetravel list``: the checkpoints of a session, whether a kernel runs or not."""

from __future__ import annotations

import argparse
import json

from jupyter_timetravel import render
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.tables import table
from kernel_runtime.timeline.model import VOLATILE_ENGINES
from kernel_runtime.timeline.text import plural

SUMMARY = "list the checkpoints of a notebook"

_HEAD = ("#", "MADE", "WHAT", "HOLDS", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    stored.add_store(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Print the table. Raises NoSuchSession."""
    with stored.opened(args) as store:
        session = stored.look(store, stored.find(store, args))
        timeline = session.timeline
        records = [timeline.record(c, history=False) for c in timeline]
    if args.json:
        head = timeline.head.id if timeline.head else None
        told = {"timeline": timeline.id, "notebook": session.info.path, "head": head}
        print(json.dumps({**told, "checkpoints": records}, indent=2))
        return 0
    print(
        table(_HEAD, [_cells(record, session.info.in_use) for record in records])
        if records
        else "no checkpoints"
    )
    return 0


def _cells(record: render.Record, in_use: bool) -> tuple[str, ...]:
    ready = [capture for capture in record["captures"] if capture["state"] == "ready"]
    engines = {capture["engine"] for capture in ready if capture["kind"] == "filesystem"}
    processes = {capture["engine"] for capture in ready if capture["kind"] == "process"}
    if not in_use:
        processes -= VOLATILE_ENGINES  # they have ended with their kernel
    held = ["memory"] if processes else []
    held += ["variables"] if any(capture["kind"] == "namespace" for capture in ready) else []
    held += ["workspace"] if "workspace" in engines else []
    held += ["environment"] if "overlay" in engines else []
    notes = [f"[{record['label']}]"] if record["label"] else []
    notes += ["pinned"] if record["pinned"] else []
    notes += ["safety"] if record["reason"] == "safety" else []
    notes += [plural(record["effects"], "effect")] if record["effects"] else []
    notes += ["← the session is here"] if record["is_head"] else []
    return (
        f"#{record['number']}",
        render.clock(record),
        render.what(record),
        ", ".join(held) or "nothing",
        "  ".join(notes),
    )
