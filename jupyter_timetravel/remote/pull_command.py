"""``jupyter timetravel pull``: take a timeline, or single checkpoints, from object storage."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress as Shown
from jupyter_timetravel.exchange.manifest import Contents
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.importing import waits_for_trust
from jupyter_timetravel.remote import choosing, fit, published, sealing
from jupyter_timetravel.remote.bucket import Bucket
from jupyter_timetravel.remote.contents import contents_of
from jupyter_timetravel.remote.errors import PullRefused
from jupyter_timetravel.remote.fetching import Source
from jupyter_timetravel.remote.layout import Coder, Ref
from jupyter_timetravel.remote.listing import BadListing, Listing
from jupyter_timetravel.remote.progress import Progress
from jupyter_timetravel.remote.pulling import Pull, Pulled
from kernel_runtime.store import encryption
from kernel_runtime.store.database import Store, open_store
from kernel_runtime.store.paths import private_umask
from kernel_runtime.timeline.report import title
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "take a timeline, or single checkpoints, from object storage; nothing of it is run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="where it was pushed to")
    parser.add_argument(
        "what", metavar="WHAT", nargs="?", help="an id or notebook's name, as `remote list` shows"
    )
    parser.add_argument("checkpoints", metavar="N", nargs="*", help="these only")
    parser.add_argument("--as", dest="path", metavar="NOTEBOOK", help="let this notebook have it")
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what of it could be restored here, and fetch nothing",
    )
    parser.add_argument(
        "--partial", action="store_true", help="what is whole, where something of it is missing"
    )
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch it. Raises PullRefused, NoSuchTimeline, RemoteUnreachable, StoreError."""
    with private_umask():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    bucket = Bucket(args.url)
    directory = stored.directory_of(args)
    path = os.path.realpath(args.path) if args.path else None
    if path is not None and not (path.endswith(".ipynb") and os.path.isfile(path)):
        raise PullRefused(
            bucket.shown, f"{one_line(args.path, 200)} is no notebook", "Make the notebook first."
        )
    found = choosing.look(bucket, directory, ask=True)
    ref = choosing.choose(found, bucket, args.what)
    seal = found.seals.get(ref.sealed or "")
    if seal is not None and not args.check:
        sealing.prepare(directory, bucket, seal, found.secrets[seal.id])
    coder = Coder(seal.cipher if seal is not None else None)
    _, listing = published.everything(bucket, coder, found.seals.values(), ref)
    if args.check:
        return _check(args, bucket, coder, ref, listing)
    if encryption.is_encrypted(directory):
        stored.unlock(directory)
    else:
        encryption.at_start(directory)  # a new store is encrypted where a key is named
    store = open_store(directory)
    progress = Progress("fetched")
    try:
        _refuse_taken(store, bucket, path)
        pull = Pull(store, bucket, coder, ref, listing, progress)
        contents = _contents(args, bucket, ref, listing)
        with Shown(args, meter=progress):
            done = pull.run(contents, partial=args.partial)
        if path is not None and done.origin.trusted:
            store.file_under(done.id, path, None)
        elif path is not None:
            store.file_under(done.id, None, replace(done.origin, wanted_path=path))
    finally:
        store.close()
    text = _text(done, progress, path)
    told = {
        "session": done.id,
        "notebook": done.contents.notebook,
        "checkpoints": [one.number for one in done.contents.checkpoints],
        "left_out": done.left_out,
        "is_trusted": bool(done.origin.trusted),
        "text": text,
    }
    tell(args, text, told)
    return 0


def _check(
    args: argparse.Namespace,
    bucket: Bucket,
    coder: Coder,
    ref: Ref,
    listing: Listing,
) -> int:
    contents = _contents(args, bucket, ref, listing)
    source = Source(bucket, coder, listing.objects, Progress("read"))
    size = size_text(sum(listing.objects.values()))
    fits = [(one, fit.lines(one, listing, source)) for one in contents.checkpoints]
    lines = [
        f"{one_line(ref.notebook, 200)}, {plural(len(fits), 'checkpoint')}, {size} at most; "
        "restorable here:"
    ]
    for one, said in fits:
        lines.append(title({"number": one.number, "label": one.label, "comment": one.comment}))
        lines += [f"  {line}" for line in said]
    if not ref.is_ours:
        lines.append(
            f"It is not signed by you (key {one_line(ref.key, 64)}): restoring it needs `trust`."
        )
    told = {
        "notebook": ref.notebook,
        "bytes": sum(listing.objects.values()),
        "is_yours": ref.is_ours,
        "checkpoints": [{"number": one.number, "restorable_here": said} for one, said in fits],
    }
    tell(args, "\n".join(lines), told)
    return 0


def _contents(args: argparse.Namespace, bucket: Bucket, ref: Ref, listing: Listing) -> Contents:
    try:
        return contents_of(ref, listing, args.checkpoints)
    except BadListing as error:
        what = f"{ref.notebook} of {bucket.shown}"
        raise PullRefused(what, f"its list is damaged: {error}", "Push it again.") from error


def _refuse_taken(store: Store, bucket: Bucket, path: str | None) -> None:
    if path is not None and any(info.path == path for info in store.timelines()):
        raise PullRefused(
            bucket.shown,
            f"{one_line(path, 200)} has a history of its own",
            "Pull without --as, then `jupyter timetravel adopt`.",
        )


def _text(done: Pulled, progress: Progress, path: str | None) -> str:
    count = plural(len(done.contents.checkpoints), "checkpoint")
    name = one_line(done.contents.notebook, 200)
    lines = [f"pulled {count} of {name} as {done.id[:12]} ({progress.moved()})"]
    if done.left_out:
        lines.append("not whole there, and left out:")
        lines += [f"  {one_line(line, 300)}" for line in done.left_out]
    if not done.origin.trusted:
        lines.append(
            f"It is not signed by you (it names the key {one_line(done.contents.key, 64)}): list, "
            "show and diff work, restoring is refused, since restoring it runs code that whoever "
            f"made it chose. `jupyter timetravel trust {done.id[:12]}` allows it."
            + waits_for_trust(path, done.id)
        )
    elif path is None:
        lines.append(
            f"`jupyter timetravel adopt {done.id[:12]} NOTEBOOK` lets a notebook go on with it"
        )
    return "\n".join(lines)
