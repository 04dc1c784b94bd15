"""``jupyter timetravel import``: take an exported timeline into the store."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.exchange.errors import ImportRefused
from jupyter_timetravel.exchange.taking import take_in
from jupyter_timetravel.offline import stored
from kernel_runtime.store.database import open_store
from kernel_runtime.timeline.text import one_line, plural

SUMMARY = "take an exported timeline into the store; nothing of it is run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.ttl", help="what `export` has written")
    parser.add_argument("--as", dest="path", metavar="NOTEBOOK", help="let this notebook have it")
    parser.add_argument(
        "--any-size", action="store_true", help="however much it unpacks to, if there is room"
    )
    stored.add_store(parser)


def waits_for_trust(path: str | None, id: str) -> str:
    """What becomes of ``--as`` until somebody trusts it."""
    if path is None:
        return ""
    return f" {one_line(path, 200)} has it from then on; until then it goes by {id[:12]}."


def run(args: argparse.Namespace) -> int:
    """Import. Raises ImportRefused: the store is as it was."""
    path = os.path.realpath(args.path) if args.path else None
    if path is not None and not (path.endswith(".ipynb") and os.path.isfile(path)):
        raise ImportRefused(args.file, f"{one_line(args.path, 200)} is no notebook")
    store = open_store(stored.directory_of(args))
    try:
        taken = [info for info in store.timelines() if info.path == path and path]
        if taken:
            raise ImportRefused(
                args.file,
                f"{one_line(args.path, 200)} has a history of its own; import without --as, then "
                "`jupyter timetravel adopt`",
            )
        with Progress(args) as progress:
            id, contents, origin = take_in(
                store, Path(args.file), any_ratio=args.any_size, meter=progress.meter
            )
        if path is not None and origin.trusted:
            store.file_under(id, path, None)
        elif path is not None:
            store.file_under(id, None, replace(origin, wanted_path=path))
    finally:
        store.close()
    count = plural(len(contents.checkpoints), "checkpoint")
    lines = [f"imported {count} of {one_line(contents.notebook, 200)} as {id[:12]}"]
    if not origin.trusted:
        lines.append(
            f"It is not signed by you (it names the key {one_line(contents.key, 64)}): list, show "
            "and diff work, restoring is refused, since restoring it runs code that whoever made "
            f"it chose. `jupyter timetravel trust {id[:12]}` allows it." + waits_for_trust(path, id)
        )
    elif path is None:
        lines.append(f"`jupyter timetravel adopt {id[:12]} NOTEBOOK` lets a notebook go on with it")
    told = {
        "timeline": id,
        "checkpoints": len(contents.checkpoints),
        "notebook": path if origin.trusted else None,
        "trusted": bool(origin.trusted),
    }
    tell(args, "\n".join(lines), {**told, "text": "\n".join(lines)})
    return 0
