"""``jupyter timetravel trust``: allow that an imported timeline is restored.

Asked of a person at a terminal, or said with ``--yes``; nothing in a kernel can say it.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from jupyter_timetravel.command_line.output import confirm, tell
from jupyter_timetravel.exchange.trusting import sign_anew
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import Session
from kernel_runtime.timeline.text import one_line, plural

SUMMARY = "allow that an imported timeline is restored"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Show what it is, ask, and sign it. Raises NoSuchSession, BadRequest: nothing was changed."""
    with stored.opened(args) as store:
        info = stored.find(store, args)
        origin = info.origin
        if origin is None or origin.trusted:
            text = f"{info.id[:12]} is trusted already: it is your own, or you have said so"
            tell(args, text, {"timeline": info.id, "about": "", "text": text})
            return 0
        session = stored.look(store, info)
        shown = told(session)
        confirm(args, shown, "Trust it?")
        sign_anew(store, info)
        store.file_under(info.id, None, replace(origin, trusted="you"))
        wanted = origin.wanted_path
        if wanted and os.path.isfile(wanted) and not _has_history(session, wanted):
            store.file_under(info.id, wanted, None)
            text = f"trusted; {one_line(wanted, 200)} goes on with it when a kernel starts there"
        else:
            text = (
                f"trusted; `jupyter timetravel adopt {info.id[:12]} NOTEBOOK` gives it a notebook"
            )
    if args.yes and not args.json:
        text = f"{shown}\n{text}"  # who was asked has seen it
    tell(args, text, {"timeline": info.id, "about": shown, "text": text})
    return 0


def told(session: Session) -> str:
    """Where it comes from and what a restore could bring, from its records alone."""
    info, timeline = session.info, session.timeline
    assert info.origin is not None
    origin = info.origin
    held = {c.kind for one in timeline for c in one.captures if c.state == "ready"}
    overlays = any(
        c.engine == "overlay" and c.state == "ready" for one in timeline for c in one.captures
    )
    what = [
        *(["variables (a restore runs code of theirs)"] if "namespace" in held else []),
        *(["files of a workspace"] if "filesystem" in held else []),
        *(["files of an environment, such as packages, which sessions run"] if overlays else []),
    ]
    return "\n".join(
        [
            f"{one_line(origin.notebook, 200)}, {plural(len(timeline), 'checkpoint')}",
            f"  exported    {one_line(origin.exported_at, 60)}, it says",
            f"  key         {one_line(origin.key, 64)}, it says; not yours",
            f"  imported    {one_line(origin.imported_at, 60)}",
            f"  holds       {', '.join(what) or 'records only'}",
            "Whoever made the file decides what runs when it is restored. Trust it only if it came",
            "to you from somebody you know, over a way that nobody else could write to.",
        ]
    )


def _has_history(session: Session, path: str) -> bool:
    kernel = session.info.kernel_name
    return any(
        info.path == path and info.kernel_name == kernel for info in session.store.timelines()
    )
