"""The store as the command line uses it: which timeline is meant, and who has it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.snapshots import read_manifest
from kernel_runtime.errors import TimeTravelError, UnknownCheckpoint
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import FILE_NAME, Store, TimelineInfo, open_store
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.store.paths import store_directory
from kernel_runtime.timeline import Checkpoint, Timeline, new_id

_ID: Final = re.compile(r"[0-9a-f]{6,32}")
_SPEC: Final = re.compile(r"-?[0-9]{1,18}")


class NoSuchSession(TimeTravelError):
    """The store holds no timeline of that notebook, or several: nothing was done."""


class SessionInUse(TimeTravelError):
    """A kernel runs on that timeline: nothing was done."""


@dataclass
class Session:
    """One timeline with its way into the store."""

    store: Store
    info: TimelineInfo
    timeline: Timeline

    @property
    def notebook(self) -> str:
        """How it is called in a sentence."""
        return self.info.path or f"session {self.info.id[:12]}"

    @property
    def environment(self) -> Path:
        """Where its layers are."""
        return self.store.directory / "environments" / self.info.id

    def checkpoint(self, text: str) -> Checkpoint:
        """The one that is meant. Raises UnknownCheckpoint."""
        spec = int(text) if _SPEC.fullmatch(text) else text
        try:
            return self.timeline.resolve(spec)
        except UnknownCheckpoint as error:
            raise UnknownCheckpoint(
                spec, f"`jupyter timetravel list {self.notebook}` shows those that exist."
            ) from error


def add_store(parser: argparse.ArgumentParser) -> None:
    """The option that all of these commands have."""
    parser.add_argument(
        "--store", metavar="DIR", help="the store (default: $JUPYTER_TIMETRAVEL_STORE, or yours)"
    )


def add_notebook(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The argument that names a session."""
    parser.add_argument(
        "notebook",
        metavar="NOTEBOOK",
        nargs="?" if optional else None,
        help="a notebook's path, or the id that `sessions` shows",
    )
    parser.add_argument("--kernel", metavar="NAME", help="where it was run by several kernels")


def directory_of(args: argparse.Namespace) -> Path:
    """The store that is meant."""
    return Path(args.store).absolute() if args.store else store_directory()


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Store]:
    """The store, which must be there. Raises StoreError, NoSuchSession."""
    if not sys.platform.startswith("linux"):
        raise NoSuchSession("There are no sessions: time travel needs Linux. Nothing was done.")
    directory = directory_of(args)
    if not (directory / FILE_NAME).exists():
        raise NoSuchSession(
            f"There is no store in {directory}: no time-travel kernel has run with it. Nothing was "
            "done; give another one with --store DIR."
        )
    with closing(open_store(directory)) as store:
        yield store


def find(store: Store, args: argparse.Namespace) -> TimelineInfo:
    """The timeline that a command is about. Raises NoSuchSession."""
    path = os.path.realpath(args.notebook)
    known = store.timelines()
    found = [info for info in known if info.path == path]
    if not found and _ID.fullmatch(args.notebook):
        found = [info for info in known if info.id.startswith(args.notebook)]
    if args.kernel:
        found = [info for info in found if info.kernel_name == args.kernel]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted({info.kernel_name for info in found}))
        raise NoSuchSession(
            f"{args.notebook} was run by several kernels ({names}). Nothing was done; say which "
            "with --kernel NAME."
        )
    more = "" if os.path.exists(path) else " There is no such file either."
    raise NoSuchSession(
        f"The store {store.directory} has no session of {args.notebook}.{more} Nothing was done; "
        "`jupyter timetravel sessions` lists those that there are."
    )


def look(store: Store, info: TimelineInfo) -> Session:
    """To read only: a kernel may be at work on it."""
    return Session(store, info, store.look_at(info.id))


def take(store: Store, info: TimelineInfo) -> Session:
    """To change; until the store is closed no kernel can have it. Raises SessionInUse."""
    if info.path is None and not info.in_use:
        raise NoSuchSession(
            f"The session {info.id[:12]} belongs to no notebook, so no kernel can start from it. "
            "Nothing was done; `jupyter timetravel prune` deletes it."
        )
    with suppress(TimelineInUse):
        if info.path is not None:
            timeline = store.load_timeline(info.path, info.kernel_name, epoch=new_id())
            return Session(store, info, timeline)
    raise SessionInUse(
        f"A kernel runs on {info.path or info.id[:12]}. Nothing was done; shut it down first "
        "(in JupyterLab: Kernel, Shut Down Kernel), or use %restore and %checkpoint --delete in it."
    )


def snapshot_of(checkpoint: Checkpoint | None) -> str | None:
    """The snapshot of the workspace that a checkpoint holds."""
    capture = checkpoint.capture("filesystem", engine="workspace") if checkpoint else None
    return capture.ref if capture is not None and capture.state == "ready" else None


def workspace_engine(session: Session, snapshot: str) -> WorkspaceEngine:
    """The engine for the directories that a snapshot is of; to be closed."""
    blobs = BlobStore(session.store.directory)
    roots = [path for path, _ in read_manifest(blobs, snapshot).roots]
    return WorkspaceEngine(
        roots,
        blobs,
        journal_dir=session.store.directory / "journal",
        document=Path(session.info.path) if session.info.path else None,
    )
