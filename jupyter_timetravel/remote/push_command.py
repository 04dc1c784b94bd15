"""``jupyter timetravel push``: send timelines, or single checkpoints, to object storage."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress as Shown
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import NoSuchSession, Session
from jupyter_timetravel.remote import sealing
from jupyter_timetravel.remote.bucket import Bucket
from jupyter_timetravel.remote.progress import Progress
from jupyter_timetravel.remote.pushing import Push
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.store.paths import private_umask
from kernel_runtime.timeline.text import one_line, plural

SUMMARY = "send timelines, or single checkpoints, to object storage"
_UNSEALED: Final = (
    "What is sent is not sealed, as the store is not encrypted: whoever can read the remote can "
    "read files, values of variables, all that was in memory where processes are sent, and "
    "whatever secrets were among them. `jupyter timetravel redact` takes a secret out first."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="s3://, gs://, az:// or file:// with a path")
    stored.add_notebook(parser, optional=True)
    parser.add_argument(
        "checkpoints", metavar="N", nargs="*", help="these only: numbers, labels, comments, or -1"
    )
    parser.add_argument(
        "--no-environment", action="store_true", help="without files outside of the workspace"
    )
    parser.add_argument(
        "--images",
        action="store_true",
        help="the exact processes too: all that was in memory, for the same machine and user",
    )
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Send. Raises NoSuchSession, UnknownCheckpoint, PushRefused, RemoteUnreachable."""
    with private_umask():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    with stored.opened(args) as store:
        chosen = [stored.find(store, args)] if args.notebook else _all(store)
        for info in chosen:
            stored.refuse_untrusted(info)
        bucket = Bucket(args.url, make=True)
        seal = sealing.of_store(store.directory)
        if seal is None:
            print(_UNSEALED, file=sys.stderr, flush=True)  # before anything leaves
        sent = [_push(stored.look(store, info), bucket, seal, args) for info in chosen]
    text = "\n".join(str(one["text"]) for one in sent)
    tell(args, text, {"sessions": sent, "is_sealed": seal is not None})
    return 0


def _push(
    session: Session, bucket: Bucket, seal: sealing.Seal | None, args: argparse.Namespace
) -> dict[str, Any]:
    wanted = [session.checkpoint(text) for text in args.checkpoints] or [*session.timeline]
    if not wanted:
        raise NoSuchSession(
            f"{one_line(session.notebook, 200)} has no checkpoint yet. Nothing was sent; run a "
            "cell first."
        )
    progress = Progress("sent")
    with Shown(args, meter=progress):
        done = Push(session, bucket, seal, progress).run(
            wanted, environment=not args.no_environment, images=args.images
        )
    told = progress.moved() if done.is_new else f"all there already; {progress.moved()}"
    return {
        "session": session.info.id,
        "notebook": session.notebook,
        "checkpoints": done.checkpoints,
        "is_new": done.is_new,
        "objects": progress.objects,
        "bytes": progress.bytes,
        "text": (
            f"{one_line(session.notebook, 200)}: {plural(done.checkpoints, 'checkpoint')} in "
            f"{bucket.shown} as {session.info.id[:12]} ({told})"
        ),
    }


def _all(store: Store) -> list[TimelineInfo]:
    found = [
        info
        for info in store.timelines()
        if info.checkpoints
        and (info.path is not None or stored.is_aside(info))
        and (info.origin is None or info.origin.trusted)
    ]
    if not found:
        raise NoSuchSession(
            f"The store {store.directory} has no timeline of a notebook. Nothing was sent."
        )
    return found
