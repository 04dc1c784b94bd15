"""``jupyter timetravel delete``: take checkpoints out, or a whole timeline."""

from __future__ import annotations

import argparse

from jupyter_timetravel import commands
from jupyter_timetravel.command_line.output import confirm, tell
from jupyter_timetravel.command_line.sessions import add_session, session, spec
from jupyter_timetravel.offline import pruning, stored
from jupyter_timetravel.offline.stored import SessionInUse
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline.report import title
from kernel_runtime.timeline.text import plural

SUMMARY = "delete checkpoints, or a whole timeline; what only they need is freed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session(parser)
    parser.add_argument("checkpoints", metavar="N", nargs="*", help="number, label, comment, or -1")
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="all of it: checkpoints, files outside of the workspace, variables",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Delete. Raises NotConfirmed, DeleteRefused, SessionInUse: what is named there is left."""
    if bool(args.checkpoints) == args.timeline:
        raise BadRequest("Name checkpoints to delete, or --timeline. Nothing was done.")
    return _timeline(args) if args.timeline else _checkpoints(args)


def _checkpoints(args: argparse.Namespace) -> int:
    with session(args) as found:
        # by id: a number relative to the newest means another one after each deletion
        shown = [found.ask(commands.get(spec(text)))["checkpoint"] for text in args.checkpoints]
        records = list({record["id"]: record for record in shown}.values())
        names = ", ".join(map(title, records))
        confirm(args, f"{found.title}: {names}", "Nothing brings them back.")
        deleted = [found.ask(commands.delete(record["id"]))["deleted"] for record in records]
    tell(args, f"deleted {names}", {"deleted": deleted, "text": f"deleted {names}"})
    return 0


def _timeline(args: argparse.Namespace) -> int:
    with session(args) as found:
        if found.running:
            raise SessionInUse(
                f"A kernel runs on {found.title}. Nothing was done; shut it down first (in "
                "JupyterLab: Kernel, Shut Down Kernel)."
            )
    with stored.opened(args) as store:
        info = stored.find(store, args)
        name = stored.name_of(info)
        confirm(
            args,
            f"{name}: {plural(info.checkpoints, 'checkpoint')} and what they hold. Files of the "
            "workspace stay as they are now.",
            "Nothing brings them back.",
        )
        report = pruning.forget(store, info)
    tell(
        args,
        report.text(),
        {"timeline": info.id, "freed_bytes": report.freed, "text": report.text()},
    )
    return 0
