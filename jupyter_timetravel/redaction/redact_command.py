"""``jupyter timetravel redact``: take a secret out of the checkpoints that hold it.

It never prints the secret, and takes none as an argument: arguments are seen by every user of the
machine and stay in the history of a shell.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_timetravel.command_line.output import FAILED, OK, confirm, tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import Session, SessionInUse
from jupyter_timetravel.redaction import groups, looking, redacting
from jupyter_timetravel.redaction.looking import Plan, Stores
from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.engines.charges import room_of
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.timeline import new_id
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "take a secret (a variable, a file, a text) out of the checkpoints that hold it"

NOT_REACHED = (
    "the notebook itself, and files as they are now: the next checkpoint would hold them again",
    "IPython's history of inputs (history.sqlite in its profile)",
    "exports, container images, and what was pushed to a remote: delete them there",
    "backups and snapshots of the disk, its free blocks, and swap",
    "processes that run, and what is packed, encrypted or in base64 within a value or a file",
)
_NUMBERS_SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser, optional=True)
    parser.add_argument(
        "--variable", metavar="NAME", action="append", default=[], help="a variable, by its name"
    )
    parser.add_argument(
        "--file", metavar="PATH", action="append", default=[],
        help="a file or a directory, as the session had it",
    )  # fmt: skip
    parser.add_argument("--text", action="store_true", help="ask for a text at the terminal")
    parser.add_argument(
        "--text-from", metavar="FILE", action="append", default=[],
        help="a file that holds one text and nothing else; - is standard input",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say where it is and what will go")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Do it. Raises BadRequest, NotConfirmed, SessionInUse: nothing was done.

    Raises RedactionUnfinished: doing it again goes on.
    """
    needle = _needle(args)
    with stored.opened(args) as store, Progress(args):
        infos = [stored.find(store, args)] if args.notebook else store.timelines()
        stores = Stores(store.directory)
        if args.dry_run:
            plans = [looking.look(stores, stored.look(store, info), needle) for info in infos]
            noted = groups.look(store, {info.id for info in infos}, needle)
            return _tell(args, plans, noted, _elsewhere(store, stores, infos, needle), 0, [])
        taken, left = _taken(store, infos, stores, needle, named=bool(args.notebook))
        plans = [looking.look(stores, session, needle) for session in taken]
        todo = [plan for plan in plans if not plan.is_empty]
        noted = groups.look(store, {one.info.id for one in taken}, needle)
        if todo or noted:
            confirm(args, "\n".join(_lines(todo, noted)), "Nothing brings this back.")
        before = room_of([store.directory])
        for plan in todo:
            redacting.redact(stores, plan, needle)
        store.groups.rewrite(record for one in noted for record in one.records)
        # also where nothing was found: what held it may be unnamed, from a run that was cut short
        left += redacting.sweep(store, stores, {one.info.id for one in taken})
        for plan in todo:
            left += redacting.still_there(store, stores, plan)
        left += _elsewhere(store, stores, infos, needle)
        freed = max(0, before - room_of([store.directory]))
        return _tell(args, plans, noted, left, freed, [plan.session.info for plan in todo])


def _needle(args: argparse.Namespace) -> Needle:
    texts = [_read(name) for name in args.text_from]
    if args.text:
        if not sys.stdin.isatty():
            raise BadRequest(
                "--text asks at a terminal, and there is none. Nothing was done; use --text-from."
            )
        texts.append(getpass.getpass("Text to take out (it is not shown): "))
    if not (texts or args.variable or args.file):
        raise BadRequest(
            "Say what is to be taken out: --variable NAME, --file PATH, --text, or --text-from "
            "FILE. Nothing was done."
        )
    if not all((*args.variable, *args.file)):
        raise BadRequest("A --variable or --file has no name. Nothing was done.")
    paths = tuple(os.path.abspath(path) for path in args.file)
    return Needle(frozenset(args.variable), paths, tuple(texts))


def _read(name: str) -> str:
    """A text from a file, without the line end behind it."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{name} cannot be read as a text: {error}. Nothing was done.") from error
    return text.removesuffix("\n").removesuffix("\r")


def _taken(
    store: Store, infos: Iterable[TimelineInfo], stores: Stores, needle: Needle, *, named: bool
) -> tuple[list[Session], list[str]]:
    """The timelines that can be changed, and why others cannot. Raises SessionInUse."""
    taken, left = [], []
    for info in infos:
        name = one_line(stored.name_of(info), 200)
        if info.origin is not None and not info.origin.trusted:
            if not looking.look(stores, stored.look(store, info), needle).is_empty or named:
                left.append(
                    f"{name}: it was imported and is not trusted, so it is not written to; "
                    f"`jupyter timetravel prune {info.id[:12]} --session` deletes it"
                )
            continue
        try:
            timeline = store.take(info.id, epoch=new_id())
        except TimelineInUse:
            if named:
                raise SessionInUse(
                    f"A kernel runs on {name}. Nothing was done; shut it down first: its processes "
                    "hold in memory what is to be taken out."
                ) from None
            left.append(f"{name}: a kernel runs on it; it was left alone. Do it again afterwards")
            continue
        taken.append(Session(store, info, timeline))
    return taken, left


def _elsewhere(
    store: Store, stores: Stores, done: Iterable[TimelineInfo], needle: Needle
) -> list[str]:
    """Other timelines that hold the same text or file."""
    known = {info.id for info in done}
    same = Needle(files=needle.files, texts=needle.texts)
    if not (same.files or same.texts):
        return []
    return [
        f"{one_line(stored.name_of(info), 200)} holds it too: without NOTEBOOK all are redacted"
        for info in store.timelines()
        if info.id not in known
        and not looking.look(stores, stored.look(store, info), same).is_empty
    ]


def _tell(
    args: argparse.Namespace,
    plans: list[Plan],
    noted: list[groups.Found],
    left: list[str],
    freed: int,
    done: list[TimelineInfo],
) -> int:
    found = [plan for plan in plans if not plan.is_empty]
    doubtful = any(plan.unread for plan in plans)
    lines = _lines(plans, noted)
    if not (found or noted):
        lines.append("found in no checkpoint")
    elif args.dry_run:
        lines.append("nothing was changed")
    else:
        lines.append(f"redacted: {plural(len(done), 'session')}; {size_text(freed)} freed")
    lines += [f"not done: {text}" for text in left]
    lines += ["not reached:", *(f"  {text}" for text in NOT_REACHED)]
    lines.append(
        "If it was a password or a key, change it: nobody knows who has read it until now."
    )
    result: dict[str, Any] = {
        "dry_run": args.dry_run,
        "sessions": [looking.as_json(plan) for plan in found],
        "groups": [
            {"group": one.group.name, "records": [record.title for record in one.records]}
            for one in noted
        ],
        "freed_bytes": freed,
        "not_done": left,
        "not_reached": list(NOT_REACHED),
        "text": "\n".join(lines),
    }
    tell(args, "\n".join(lines), result)
    return OK if args.dry_run or not (left or doubtful) else FAILED


def _lines(plans: Iterable[Plan], noted: Iterable[groups.Found]) -> list[str]:
    lines = [
        f"group {one.group.name}: what is noted of {', '.join(r.title for r in one.records)}"
        for one in noted
    ]
    for plan in plans:
        if plan.is_empty and not plan.unread:
            continue
        lines.append(one_line(stored.name_of(plan.session.info), 200))
        for what, numbers in {**plan.lost, **plan.where}.items():
            lines.append(f"  {_numbers(numbers)}: {one_line(what, 300)}")
        if plan.processes:
            lines.append(f"  {size_text(plan.processes_bytes)} of written processes go")
        if plan.mentions:
            lines.append(
                f"  {_numbers(plan.mentions)}: cells name the variable and stay as they are; if "
                "its value stands in them, take the value out too (--text)"
            )
        for what, why in plan.unread.items():
            lines.append(
                f"  cannot be read, so it may be in there: {one_line(f'{what}: {why}', 300)}"
            )
    return lines


def _numbers(numbers: list[int]) -> str:
    ordered = sorted(set(numbers))
    if not ordered:
        return "of no checkpoint"
    shown = ", ".join(f"#{number}" for number in ordered[:_NUMBERS_SHOWN])
    more = len(ordered) - _NUMBERS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
