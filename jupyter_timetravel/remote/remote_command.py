"""``jupyter timetravel remote``: look at what object storage has of timelines."""

from __future__ import annotations

import argparse
from datetime import datetime

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.tables import age_text, table
from jupyter_timetravel.remote import choosing
from jupyter_timetravel.remote.bucket import Bucket
from kernel_runtime.timeline.text import one_line, size_text

SUMMARY = "look at what was pushed to object storage"
_HEAD = ("NOTEBOOK", "KERNEL", "PUSHED", "CHECKPOINTS", "SIZE", "", "ID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="action", metavar="list", required=True)
    listing = subparsers.add_parser("list", help="the timelines there", description=SUMMARY)
    listing.add_argument("url", metavar="URL", help="where it was pushed to")
    stored.add_store(listing)
    # behind `list` as well as before it
    listing.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def run(args: argparse.Namespace) -> int:
    """List. Raises RemoteUnreachable, StoreError."""
    bucket = Bucket(args.url)
    found = choosing.look(bucket, stored.directory_of(args), ask=False)
    found_rows = [
        {
            "id": ref.timeline,
            "notebook": ref.notebook,
            "kernel_name": ref.kernel_name,
            "pushed_at": ref.pushed_at,
            "checkpoints": ref.checkpoints,
            "bytes": ref.bytes,
            "key": ref.key,
            "is_yours": ref.is_ours,
            "sealed": ref.sealed,
        }
        for ref in found.refs
    ]
    told = {"timelines": found_rows, "closed": found.closed, "damaged": found.damaged}
    rows = [
        (
            one_line(ref.notebook, 100),
            one_line(ref.kernel_name, 60),
            age_text(datetime.fromisoformat(ref.pushed_at)),
            str(ref.checkpoints),
            size_text(ref.bytes),
            "" if ref.is_ours else f"signed with the key {one_line(ref.key, 16)}",
            ref.timeline[:12],
        )
        for ref in found.refs
    ]
    lines = [table(_HEAD, rows) if rows else "nothing was pushed there"]
    lines += [
        f"sealed with the key {id[:12]}, not shown: {why}" for id, why in found.closed.items()
    ]
    lines += [f"damaged: {text}" for text in found.damaged]
    tell(args, "\n".join(lines), told)
    return int(bool(found.damaged))
