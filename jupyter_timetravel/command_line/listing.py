"""``jupyter timetravel list``: the checkpoints of a session, whether a kernel runs or not."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands, render
from jupyter_timetravel.command_line import grouping
from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.sessions import add_session, session
from jupyter_timetravel.offline.tables import table
from kernel_runtime.timeline.text import plural

SUMMARY = "list the checkpoints of a notebook"

_HEAD = ("#", "MADE", "WHAT", "HOLDS", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser, optional=True)
    grouping.add_group(parser, "list the records of this group, and where its members are")
    parser.add_argument("--manual", action="store_true", help="only those that were asked for")


def run(args: argparse.Namespace) -> int:
    """Print the table. Raises NoSuchSession, NoSuchKernel."""
    if args.group is not None:
        grouping.refuse_beside_group(args, notebook=None, kernel=None, manual=False)
        return grouping.show(args, args.group)
    with session(args) as found:
        result = {**found.about(), **found.ask(commands.list_checkpoints(not args.manual))}
    odd = render.clock_notes(result["checkpoints"])
    rows = [_cells(record, odd.get(record["id"])) for record in result["checkpoints"]]
    tell(args, table(_HEAD, rows) if rows else "no checkpoints", result)
    return 0


def _cells(record: render.Record, of_clock: str | None) -> tuple[str, ...]:
    ready = [capture for capture in record["captures"] if capture["state"] == "ready"]
    engines = {capture["engine"] for capture in ready if capture["kind"] == "filesystem"}
    processes = {capture["engine"] for capture in ready if capture["kind"] == "process"}
    held = ["memory"] if processes else []
    held += ["variables"] if any(capture["kind"] == "namespace" for capture in ready) else []
    held += ["workspace"] if "workspace" in engines else []
    held += ["environment"] if "overlay" in engines else []
    notes = [of_clock] if of_clock else []
    notes += [f"[{record['label']}]"] if record["label"] else []
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
