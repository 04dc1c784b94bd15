"""``jupyter timetravel remote``: list what object storage has of timelines, delete, clear up."""

from __future__ import annotations

import argparse
from datetime import datetime

from jupyter_timetravel.command_line.output import confirm, tell
from jupyter_timetravel.given_once import GivenFully, once
from jupyter_timetravel.offline import rules, stored
from jupyter_timetravel.offline.tables import age_text, table
from jupyter_timetravel.remote import choosing, pruning, published
from jupyter_timetravel.remote.bucket import Bucket
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "list what was pushed to object storage, delete it, or free what nothing there needs"
_DELETE = "take a timeline out of a remote, for everybody"
_PRUNE = "delete objects of a remote that no timeline there needs"
_HEAD = ("NOTEBOOK", "KERNEL", "PUSHED", "CHECKPOINTS", "SIZE", "", "ID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(
        dest="action", metavar="list | delete | prune", required=True
    )
    listing = subparsers.add_parser("list", help="the timelines there", description=SUMMARY)
    once(listing, GivenFully)
    listing.add_argument("url", metavar="URL", help="where it was pushed to")
    stored.add_store(listing)
    delete = subparsers.add_parser("delete", help="a timeline", description=_DELETE)
    once(delete, GivenFully)
    delete.add_argument("url", metavar="URL", help="where it was pushed to")
    delete.add_argument("what", metavar="WHAT", help="the notebook's name, or an id of the list")
    prune = subparsers.add_parser("prune", help="what nothing needs", description=_PRUNE)
    once(prune, GivenFully)
    prune.add_argument("url", metavar="URL", help="where it was pushed to")
    prune.add_argument(
        "--older-than", metavar="AGE", default="1d", help="90m, 12h, 30d (default: 1d)"
    )
    for parser in (delete, prune):
        parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        stored.add_store(parser)
    for parser in (listing, delete, prune):  # behind the action as well as before it
        parser.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def run(args: argparse.Namespace) -> int:
    """Do it. Raises RemoteUnreachable, RemotePruneRefused, NoSuchTimeline, StoreError."""
    return {"list": _list, "delete": _delete, "prune": _prune}[args.action](args)


def _delete(args: argparse.Namespace) -> int:
    """Take a timeline's refs away; what only it needed is free for `prune`."""
    bucket = Bucket(args.url)
    found = choosing.look(bucket, stored.directory_of(args), ask=True)
    chosen = choosing.choose(found, bucket, args.what)
    refs, _, _ = published.refs(bucket, found.seals.values(), chosen.timeline)
    gone = [ref for ref in refs if (ref.key, ref.sealed) == (chosen.key, chosen.sealed)]
    name = f"{one_line(chosen.notebook, 200)} ({chosen.timeline[:12]})"
    text = (
        f"{name} of {chosen.pushed_at[:16]}: {plural(chosen.checkpoints, 'checkpoint')}, "
        f"{size_text(chosen.bytes)} with what it shares"
    )
    if not args.dry_run:
        confirm(args, text, "Nothing brings it back.")
        bucket.delete([ref.name for ref in gone])
        text = f"deleted {text}; `jupyter timetravel remote prune` frees what only it needed"
    told = {"dry_run": args.dry_run, "timeline": chosen.timeline, "text": text}
    tell(args, text, told)
    return 0


def _prune(args: argparse.Namespace) -> int:
    bucket, age = Bucket(args.url), rules.duration(args.older_than)
    found = choosing.look(bucket, stored.directory_of(args), ask=True)
    if not args.dry_run:
        about = (
            f"{bucket.shown}: objects that nothing published needs, older than {args.older_than}"
        )
        confirm(args, about, "Delete them?")
    done = pruning.prune(bucket, [*found.seals.values()], age, dry_run=args.dry_run)
    verb = "would be deleted" if args.dry_run else "deleted"
    text = f"{plural(done.objects, 'object')}, {size_text(done.bytes)} {verb}"
    if done.young:
        text += f"; {plural(done.young, 'object')} that nothing needs are younger and stay"
    told = {"dry_run": args.dry_run, "objects": done.objects, "bytes": done.bytes, "text": text}
    tell(args, text, told | {"young": done.young})
    return 0


def _list(args: argparse.Namespace) -> int:
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
