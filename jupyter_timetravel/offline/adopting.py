"""``jupyter timetravel adopt``: let a notebook go on with a history that was set aside."""

from __future__ import annotations

import argparse
import os

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.timeline.text import one_line, plural

SUMMARY = "let a notebook go on with another history: one that was set aside, or imported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", metavar="ID", help="the history, as `sessions` shows it")
    parser.add_argument("path", metavar="NOTEBOOK", help="the notebook that is to have it")
    parser.add_argument("--kernel", metavar="NAME", help="where ID was run by several kernels")
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """File it. Raises NoSuchSession, SessionInUse, NotTrusted: nothing was changed."""
    path = os.path.realpath(args.path)
    if not path.endswith(".ipynb") or not os.path.isfile(path):
        raise stored.NoSuchSession(
            f"{one_line(args.path, 200)} is no notebook, so no kernel would find the history "
            "there. Nothing was done; make the notebook first."
        )
    with stored.opened(args) as store:
        info = stored.find(store, args)
        stored.refuse_untrusted(info)
        had = [one for one in store.timelines() if one.path == path and one.id != info.id]
        had = [one for one in had if one.kernel_name == info.kernel_name]
        try:
            store.file_under(info.id, path, None)
        except TimelineInUse as error:
            raise stored.SessionInUse(
                f"A kernel runs on {one_line(args.path, 200)} or on {info.id[:12]}. Nothing was "
                "done; shut it down first."
            ) from error
    lines = [
        f"{one_line(path, 200)} goes on with {info.id[:12]}, "
        f"{plural(info.checkpoints, 'checkpoint')}, when a kernel starts there"
    ]
    lines += [
        f"what it had ({plural(one.checkpoints, 'checkpoint')}) was set aside as {one.id[:12]}"
        for one in had
    ]
    told = {"timeline": info.id, "notebook": path, "set_aside": [one.id for one in had]}
    tell(args, "\n".join(lines), {**told, "text": "\n".join(lines)})
    return 0
