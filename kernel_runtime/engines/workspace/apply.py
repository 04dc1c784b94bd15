"""Putting what was staged in place, step by step, and taking it back.

Each step swaps one name: the staged object goes in, what was there goes to the stage's trash.
Nothing is deleted before the restore is committed, so until then everything can be taken back,
by this process or, from the journal, by the next.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kernel_runtime.engines.workspace import faults, linux
from kernel_runtime.engines.workspace.access import list_xattrs
from kernel_runtime.engines.workspace.anchor import Anchor, MovedAway
from kernel_runtime.engines.workspace.journal import Identity, OldMeta, Record, Step
from kernel_runtime.engines.workspace.metadata import Warn, open_up, set_link_metadata, set_metadata
from kernel_runtime.engines.workspace.model import Entry
from kernel_runtime.engines.workspace.operations import Parts, join
from kernel_runtime.engines.workspace.staging import OpenStage
from kernel_runtime.engines.workspace.tree import make_entry

_NO_SUCH_FLAG: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_PIN: Final = linux.O_PATH | linux.O_NOFOLLOW | linux.O_CLOEXEC

Problem = tuple[bytes, str]


class Surprise(OSError):
    """Something that must not be moved away was found where a step wanted to be."""


def identity_at(dir_fd: int, name: bytes) -> Identity | None:
    """dev and ino of what has this name, None if nothing has."""
    try:
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def swap(anchor: Anchor, stage: OpenStage, number: int, step: Step) -> bool:
    """Do one step. Returns whether something was moved to the trash.

    A directory that turns out to have been moved out of the root gets its own back at once,
    and the step is tried again where it belongs. Raises OSError (MovedAway if that goes on).
    """
    label = str(number).encode("ascii")
    for parent in anchor.steady(step.parts):
        faults.point("swap")
        try:
            moved = _swap_once(parent, stage, label, step)
        except _TryAgain:
            continue
        faults.point("swapped")
        if anchor.still_below(parent, step.parts):
            return moved
        _back(parent, stage, label, step)
    raise MovedAway(step.parts)


def take_back(anchor: Anchor, stage: OpenStage, number: int, step: Step) -> None:
    """Undo one step if it was done, wholly or half. Safe to repeat. Raises OSError."""
    label = str(number).encode("ascii")
    for parent in anchor.steady(step.parts):
        faults.point("undo")
        _back(parent, stage, label, step)
        return


def put_back_metadata(anchors: Sequence[Anchor], metas: Iterable[OldMeta]) -> list[Problem]:
    """Set old metadata again, what is deepest first; returns what could not be set."""
    problems: list[Problem] = []
    for one in sorted(metas, key=lambda one: (len(one.parts), bool(one.entry.name)), reverse=True):
        try:
            apply_metadata(anchors[one.root], one.parts, one.entry, lambda _: None)
        except FileNotFoundError:
            continue
        except OSError as cause:
            problems.append((join(one.parts, one.entry.name), cause.strerror or "not set"))
    return problems


def apply_metadata(anchor: Anchor, parts: Parts, entry: Entry, warn: Warn) -> None:
    """Give a directory (entry.name empty) or an entry of it the entry's metadata."""
    for parent in anchor.steady(parts):
        faults.point("metadata")
        if not entry.name:
            set_metadata(parent, entry, warn)
        elif entry.kind in ("l", "p"):
            set_link_metadata(parent, entry.name, entry, warn)
        else:
            fd = os.open(entry.name, _PIN, dir_fd=parent)
            try:
                wanted = stat.S_ISDIR if entry.kind == "d" else stat.S_ISREG
                if not wanted(os.fstat(fd).st_mode):
                    raise Surprise(errno.ESTALE, "it was replaced by another program meanwhile")
                set_metadata(fd, entry, warn)
            finally:
                os.close(fd)
        return


def old_directory(anchor: Anchor, root: int, parts: Parts) -> OldMeta:
    """What a directory has now, for the journal. Raises OSError."""
    for fd in anchor.steady(parts):
        return OldMeta(root, parts, entry_now(fd, b""))
    raise MovedAway(parts)


def old_file(anchor: Anchor, root: int, parts: Parts, present: Entry) -> OldMeta:
    """What a file has now, for the journal; present: as captured last."""
    for parent in anchor.steady(parts):
        if present.kind != "f":
            return OldMeta(root, parts, present)
        fd = os.open(present.name, _PIN, dir_fd=parent)
        try:
            return OldMeta(root, parts, replace(entry_now(fd, present.name), kind="f"))
        finally:
            os.close(fd)
    raise MovedAway(parts)


def open_directories(anchors: Sequence[Anchor], metas: Iterable[OldMeta]) -> None:
    """Let the owner into every directory of which the old metadata is known, top down."""
    for one in sorted(metas, key=lambda one: len(one.parts)):
        if one.entry.name or one.entry.mode & stat.S_IRWXU == stat.S_IRWXU:
            continue
        above = one.parts[:-1] if one.parts else ()
        name = one.parts[-1] if one.parts else b"."
        for parent in anchors[one.root].steady(above):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                open_up(parent, name)
            break


def undo(
    record: Record, anchors: Mapping[int, Anchor], stages: Sequence[OpenStage | None]
) -> list[Problem]:
    """Take back all that a journal records. Safe to repeat; returns what could not be."""
    problems: list[Problem] = []
    by_number = [anchors[number] for number in range(len(record.roots))]
    try:
        open_directories(by_number, record.metas)
    except OSError as cause:
        problems.append((b"", cause.strerror or "a directory cannot be opened"))
    for number in reversed(range(len(record.steps))):
        step = record.steps[number]
        stage = stages[step.stage]
        if stage is None:
            continue
        try:
            take_back(anchors[step.root], stage, number, step)
        except OSError as cause:
            problems.append((join(step.parts, step.name), cause.strerror or "not undone"))
    return problems + put_back_metadata(by_number, record.metas)


def trash_entries(stage: OpenStage) -> Iterator[int]:
    """Numbers of the steps that moved something away."""
    for name in os.listdir(stage.trash_fd):
        yield int(name)


class _TryAgain(Exception):
    """The name changed hands between two looks at it."""


def _swap_once(parent: int, stage: OpenStage, label: bytes, step: Step) -> bool:
    there = identity_at(parent, step.name)
    try:
        if step.staged is None:
            if there is None:
                return False
            linux.rename_at(parent, step.name, stage.trash_fd, label)
            return True
        if there is None:
            _move_into_gap(stage.new_fd, label, parent, step.name)
            return False
        try:
            linux.rename_at(stage.new_fd, label, parent, step.name, linux.RENAME_EXCHANGE)
        except OSError as cause:
            if cause.errno not in _NO_SUCH_FLAG:
                raise
            linux.rename_at(parent, step.name, stage.trash_fd, label)
            faults.point("between")
            _move_into_gap(stage.new_fd, label, parent, step.name)
            return True
        faults.point("exchanged")
        linux.rename_at(stage.new_fd, label, stage.trash_fd, label)
        return True
    except (FileNotFoundError, FileExistsError) as cause:
        raise _TryAgain from cause


def _back(parent: int, stage: OpenStage, label: bytes, step: Step) -> None:
    if step.staged is not None and identity_at(parent, step.name) == step.staged:
        # A directory that has its final mode already may have to be opened to be moved.
        with contextlib.suppress(OSError):  # not a directory
            open_up(parent, step.name)
    waiting = identity_at(stage.new_fd, label)
    if waiting is not None and waiting != step.staged:
        # The exchange was made, the move to the trash was not.
        if identity_at(parent, step.name) == step.staged:
            linux.rename_at(stage.new_fd, label, parent, step.name, linux.RENAME_EXCHANGE)
            return
        linux.rename_at(stage.new_fd, label, stage.trash_fd, label)
    there = identity_at(parent, step.name)
    if step.staged is not None and there == step.staged:
        linux.rename_at(parent, step.name, stage.new_fd, label)
        there = None
    if identity_at(stage.trash_fd, label) is None:
        return
    if there is not None:
        raise Surprise(
            errno.EEXIST,
            "another program put something here meanwhile; what was here before is in the "
            f"working directory {os.fsdecode(stage.where.name)}/trash/{label.decode()}",
        )
    _move_into_gap(stage.trash_fd, label, parent, step.name)


def _move_into_gap(src_fd: int, src: bytes, dst_fd: int, dst: bytes) -> None:
    """Rename to a name that nothing has. Raises FileExistsError if something has by now."""
    try:
        linux.rename_at(src_fd, src, dst_fd, dst, linux.RENAME_NOREPLACE)
    except OSError as cause:
        if cause.errno not in _NO_SUCH_FLAG:
            raise
        # This filesystem (NFS, some FUSE) cannot say "do not replace" in one call.
        if identity_at(dst_fd, dst) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), dst) from cause
        linux.rename_at(src_fd, src, dst_fd, dst)


def entry_now(fd: int, name: bytes) -> Entry:
    """An entry that holds the metadata of what is open; its kind is not looked at."""
    found = os.fstat(fd)
    xattrs, _ = list_xattrs(f"/proc/self/fd/{fd}")
    return make_entry(
        name, "d", stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns,
        xattrs=xattrs,
    )  # fmt: skip
