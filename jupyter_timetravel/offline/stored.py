"""The store as the command line uses it: which timeline is meant, and who has it."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_timetravel.containers.places import store_of
from kernel_runtime.engines.workspace.engine import WorkspaceEngine
from kernel_runtime.engines.workspace.errors import WorkspaceRestoreRefused
from kernel_runtime.engines.workspace.places import refuse_elsewhere
from kernel_runtime.engines.workspace.snapshots import read_manifest
from kernel_runtime.errors import TimeTravelError, UnknownCheckpoint
from kernel_runtime.store import encryption, notebooks
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store, TimelineInfo, open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.encryption import EncryptionLocked, Secret
from kernel_runtime.store.errors import TimelineInUse
from kernel_runtime.store.keys import NotTrusted
from kernel_runtime.store.paths import store_directory
from kernel_runtime.timeline import Checkpoint, Timeline, new_id
from kernel_runtime.timeline.names import Spec

_ID: Final = re.compile(r"[0-9a-f]{6,32}")
_SPEC: Final = re.compile(r"-?[0-9]{1,18}")


class NoSuchSession(TimeTravelError):
    """The store holds no timeline of that notebook, or several: nothing was done."""


class NotRunning(TimeTravelError):
    """The command needs a running kernel, and none runs for that notebook: nothing was done."""


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
        return name_of(self.info)

    @property
    def environment(self) -> Path:
        """Where its layers are."""
        return self.store.directory / "environments" / self.info.id

    def checkpoint(self, spec: Spec) -> Checkpoint:
        """The one that is meant; digits are a number. Raises UnknownCheckpoint."""
        if isinstance(spec, str) and _SPEC.fullmatch(spec):
            spec = int(spec)
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
    parser.add_argument(
        "--docker",
        metavar="IMAGE",
        dest="store",
        type=store_of,
        help="the store of kernels in containers of this image",
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
    unlock(directory)
    with closing(open_store(directory)) as store:
        yield store


def unlock(directory: Path) -> None:
    """Open an encrypted store for this command; asks for a passphrase where no file is named.

    Raises StoreError.
    """
    if not encryption.is_encrypted(directory) or encryption.key_file(directory) is not None:
        encryption.cipher_of(directory)
    elif encryption.kdf_of(directory) == "scrypt":
        encryption.unlock(directory, Secret(ask(f"Passphrase of {directory}: ", directory)))
    else:
        encryption.cipher_of(directory)


def ask(prompt: str, directory: Path) -> bytes:
    """A passphrase, typed at the terminal. Raises EncryptionLocked if there is none."""
    if not sys.stdin.isatty():
        raise EncryptionLocked(
            directory / encryption.FILE_NAME, "there is no terminal to ask for the passphrase at"
        )
    return getpass.getpass(prompt).encode()


def find(store: Store, args: argparse.Namespace) -> TimelineInfo:
    """The timeline that a command is about. Raises NoSuchSession."""
    path = os.path.realpath(args.notebook)
    known = _settled(store, path)
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
    aside = [info.id[:12] for info in known if is_aside(info) and _last_path(info) == path]
    if aside:
        more = f" That of another notebook, which was there before, is {', '.join(aside)}."
    raise NoSuchSession(
        f"The store {store.directory} has no session of {args.notebook}.{more} Nothing was done; "
        "`jupyter timetravel sessions` lists those that there are."
    )


def _settled(store: Store, path: str) -> list[TimelineInfo]:
    """All timelines, once a notebook that was moved or replaced is filed as that."""
    known = store.timelines()
    here = [info for info in known if info.path == path]
    if not path.endswith(".ipynb") or not os.path.exists(path) or any(i.in_use for i in here):
        return known
    names = {info.kernel_name for info in known if info.looks is not None}
    present = notebooks.look(path) if names else None
    for name in names:
        if present is not None:
            store.decide(present, name)
    return store.timelines() if names else known


def in_use(notebook: str) -> bool:
    """Whether a kernel has a timeline of this notebook, as the store's locks say.

    Raises StoreError.
    """
    directory = store_directory()
    if not sys.platform.startswith("linux") or not (directory / FILE_NAME).exists():
        return False
    path = os.path.realpath(notebook)
    with closing(open_store(directory)) as store:
        return any(info.in_use for info in store.timelines() if info.path == path)


def is_aside(info: TimelineInfo) -> bool:
    """Whether it is the history of a notebook whose name another one has taken."""
    return info.path is None and info.looks is not None


def _last_path(info: TimelineInfo) -> str | None:
    return info.path or (info.looks.path if info.looks is not None else None)


def name_of(info: TimelineInfo) -> str:
    """What its notebook is or was called."""
    imported = info.origin.notebook if info.origin is not None else ""
    return _last_path(info) or imported or f"session {info.id[:12]}"


def look(store: Store, info: TimelineInfo) -> Session:
    """To read only: a kernel may be at work on it."""
    return Session(store, info, store.look_at(info.id))


def take(store: Store, info: TimelineInfo) -> Session:
    """To change; until the store is closed no kernel can have it. Raises SessionInUse,
    NoSuchSession for one that belongs to no notebook, NotTrusted."""
    refuse_untrusted(info)
    if info.path is None and not info.in_use:
        kept = is_aside(info) or info.origin is not None
        mend = (
            f"`jupyter timetravel adopt {info.id[:12]} NOTEBOOK` gives it one."
            if kept
            else "`jupyter timetravel prune` deletes it."
        )
        raise NoSuchSession(
            f"The session {info.id[:12]} belongs to no notebook, so no kernel can start from it. "
            f"Nothing was done; {mend}"
        )
    with suppress(TimelineInUse):
        if info.path is not None:
            timeline = store.load_timeline(info.path, info.kernel_name, epoch=new_id())
            return Session(store, info, timeline)
    raise SessionInUse(
        f"A kernel runs on {info.path or info.id[:12]}. Nothing was done; shut it down first "
        "(in JupyterLab: Kernel, Shut Down Kernel), name its connection file instead of the "
        "notebook, or use %restore and %checkpoint --delete in it."
    )


def refuse_untrusted(info: TimelineInfo) -> None:
    """Raise NotTrusted for an imported timeline that nobody has trusted."""
    if info.origin is not None and not info.origin.trusted:
        raise NotTrusted(f"The imported timeline {info.id[:12]}", info.origin.key or None)


def snapshot_of(checkpoint: Checkpoint | None) -> str | None:
    """The snapshot of the workspace that a checkpoint holds."""
    capture = checkpoint.capture("filesystem", engine="workspace") if checkpoint else None
    return capture.ref if capture is not None and capture.state == "ready" else None


def workspace_engine(session: Session, snapshot: str) -> WorkspaceEngine:
    """The engine for the directories that a snapshot is of, where they are by now; to be closed.

    Raises WorkspaceRestoreRefused where its files would get into those of something else.
    """
    blobs, info = BlobStore(session.store.directory), session.info
    recorded = [path for path, _ in read_manifest(blobs, snapshot).roots]
    engine = WorkspaceEngine(
        roots_now(recorded, info),
        blobs,
        journal_dir=session.store.directory / "journal",
        document=Path(info.path) if info.path else None,
    )
    if info.looks is not None:
        engine.former = [Path(path) for path in info.looks.names_before()]
    if info.origin is None:
        try:
            refuse_elsewhere(engine, snapshot, info.looks)
        except BaseException:
            engine.close()
            raise
    return engine


def roots_now(recorded: Sequence[Path], info: TimelineInfo) -> list[Path]:
    """Where the directories of a snapshot are by now. Raises WorkspaceRestoreRefused."""
    if info.origin is None:
        return [_root_now(path, info) for path in recorded]
    if info.path is None:
        return list(recorded)  # to look at; nothing is restored without a notebook
    if len(recorded) > 1:
        why = "another machine's session had more directories; start a kernel on it, and restore"
        raise WorkspaceRestoreRefused([(os.fsencode(recorded[1]), why)])
    return [Path(info.path).parent]


def _root_now(recorded: Path, info: TimelineInfo) -> Path:
    if info.path is None or info.looks is None or _is_below(Path(info.path), recorded):
        return recorded
    for old in map(Path, reversed(info.looks.former)):
        if not _is_below(old, recorded):
            continue
        between = old.parent.relative_to(os.path.realpath(recorded)).parts
        now = Path(info.path).parent
        if now.parts[len(now.parts) - len(between) :] == between:
            return Path(*now.parts[: len(now.parts) - len(between)])
        why = "the notebook is elsewhere in it by now; start a kernel on it, and restore there"
        raise WorkspaceRestoreRefused([(os.fsencode(recorded), why)])
    return recorded


def _is_below(path: Path, top: Path) -> bool:
    return path.is_relative_to(os.path.realpath(top))
