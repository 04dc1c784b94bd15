"""``jupyter timetravel export``: a timeline, or one checkpoint, as one file or as an image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.command_line.progress import Progress
from jupyter_timetravel.exchange.errors import ExportRefused
from jupyter_timetravel.exchange.writing import Exporter
from jupyter_timetravel.offline import stored
from kernel_runtime.timeline.text import one_line, plural, size_text

SUMMARY = "write a timeline, or one checkpoint, into one file"

_ZSTD: Final = (0, b"\x28\xb5\x2f\xfd")
_TAR: Final = (257, b"ustar")
"""Where a file says what it is, and how (RFC 8878, 3.1.1; POSIX, pax)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    stored.add_notebook(parser)
    parser.add_argument("checkpoint", metavar="N", nargs="?", help="only this one")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to, such as a.ttl")
    parser.add_argument(
        "--no-environment", action="store_true", help="without files outside of the workspace"
    )
    parser.add_argument(
        "--image",
        metavar="NAME:TAG",
        help="make a container image of the environment of checkpoint N: in Docker, or with -o as "
        "an OCI archive",
    )
    parser.add_argument(
        "--base",
        metavar="IMAGE",
        help="what --image builds on: an image, or a file that docker save wrote (default: what "
        "the session's container was made of)",
    )
    parser.add_argument(
        "--workspace", action="store_true", help="put the notebook's files into the image too"
    )
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Write it. Raises NoSuchSession, UnknownCheckpoint, ExportRefused: there is no file then."""
    if args.image is not None:
        return _make_image(args)
    if args.output is None or args.base is not None or args.workspace:
        raise ExportRefused(
            "Say where to: -o FILE for a timeline or a checkpoint, --image NAME:TAG (with --base "
            "and --workspace) for a container image. No file was written."
        )
    target = _free(Path(args.output), _ZSTD)
    with stored.opened(args) as store:
        info = stored.find(store, args)
        stored.refuse_untrusted(info)
        session = stored.look(store, info)
        chosen = [session.checkpoint(args.checkpoint)] if args.checkpoint else [*session.timeline]
        if not chosen:
            raise ExportRefused(
                f"{one_line(session.notebook, 200)} has no checkpoint yet. No file was written; "
                "run a cell first."
            )
        with Progress(args) as progress:
            size = Exporter(
                session, chosen, environment=not args.no_environment, meter=progress.meter
            ).write(target)
    count = plural(len(chosen), "checkpoint")
    text = (
        f"{one_line(str(target), 200)}: {count}, {size_text(size)}\n"
        "It holds what the checkpoints hold: files, values of variables, and whatever secrets were "
        "among them. Memory of running processes is not in it."
    )
    told = {"file": str(target.absolute()), "checkpoints": len(chosen), "bytes": size}
    tell(args, text, {**told, "text": text})
    return 0


def _free(target: Path, begins: tuple[int, bytes]) -> Path:
    """Where to write. Raises ExportRefused: of what is there only an earlier export is replaced."""
    name = one_line(str(target), 200)
    if not target.absolute().parent.is_dir():
        raise ExportRefused(
            f"There is no directory for {name}. No file was written; make it, or give -o another."
        )
    if target.is_dir():
        raise ExportRefused(
            f"{name} is a directory. No file was written; give -o the name of a file, such as "
            f"{one_line(str(target / 'a.ttl'), 200)}."
        )
    offset, magic = begins
    if target.exists():
        with open(target, "rb") as file:
            head = file.read(offset + len(magic))
        if head and head[offset:] != magic:
            raise ExportRefused(
                f"{name} is there already, and no earlier export. It was left alone, and no file "
                "was written; give -o another name, or delete it first."
            )
    return target


def _make_image(args: argparse.Namespace) -> int:
    """Raises what `run` does, and ContainerError; then there is no image."""
    # late: most exports need nothing of it
    from jupyter_timetravel.containers.exporting import CheckpointImage, export

    if args.checkpoint is None:
        raise ExportRefused(
            "An image is of one checkpoint: name it behind the notebook. No image was made."
        )
    if ":" not in args.image.rpartition("/")[2]:
        raise ExportRefused(
            f"{args.image!r} has no tag; write NAME:TAG, such as {args.image}:1. No image was made."
        )
    with stored.opened(args) as store:
        info = stored.find(store, args)
        stored.refuse_untrusted(info)
        session = stored.look(store, info)
        checkpoint = session.checkpoint(args.checkpoint)
        made = CheckpointImage(session, checkpoint, workspace=args.workspace)
        target = _free(Path(args.output), _TAR) if args.output else None
        export(made, args.image, base=args.base, file=target, store=store.directory)
    place = one_line(str(target), 200) if target else "Docker"
    text = (
        f"{args.image}: checkpoint #{checkpoint.number}, in {place}\n"
        "It holds the files of the environment, and whatever secrets were among them."
    )
    told = {"image": args.image, "path": str(target) if target else None, "text": text}
    tell(args, text, told)
    return 0
