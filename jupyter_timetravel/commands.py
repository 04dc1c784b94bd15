"""The commands of docs/protocol.md, each written once for every transport.

A ``Command`` is what to ask and how to read the answer; ``Client``, ``AsyncClient`` (over a
kernel's connection, or through a Jupyter server) and the magics carry it over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.names import Spec


class _Readers:
    """Functions of a module that is imported when one of them is called.

    In a kernel the magics take answers as they are: its start does not pay for that module.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        return lambda result: getattr(import_module(self._module), name)(result)


if TYPE_CHECKING:
    from jupyter_timetravel import group_records, reading
    from jupyter_timetravel.group_records import GroupRestored, GroupState
    from jupyter_timetravel.records import (
        Applied,
        Brought,
        CellRecord,
        Changes,
        Differences,
        DocumentCell,
        Outside,
        Record,
        ReplayResult,
        ResetResult,
        RestoreResult,
        Result,
        ShownFile,
        ShownVariable,
        Status,
        Verified,
    )
    from kernel_runtime.timeline.groups import GroupRecord
else:
    reading = _Readers("jupyter_timetravel.reading")
    group_records = _Readers("jupyter_timetravel.group_records")

VERSION: Final = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Command(Generic[T]):
    """One request: its name, its arguments, and the reader of its result.

    of_server: a Jupyter server carries it out, no single kernel can.
    """

    name: str
    args: dict[str, Any]
    read: Callable[[Result], T]
    of_server: bool = False

    @property
    def content(self) -> dict[str, Any]:
        """Of the ``timetravel_request``."""
        return {"version": VERSION, "command": self.name, "args": self.args}


def status() -> Command[Status]:
    """Where the session stands."""
    return Command("status", {}, reading.read_status)


def list_checkpoints(
    include_auto: bool = True, history: Spec | None = None
) -> Command[list[Record]]:
    """All checkpoints, or ``history`` and its ancestors."""
    return Command("list", {"include_auto": include_auto, "history": history}, reading.read_list)


def get(checkpoint: Spec) -> Command[Record]:
    """One checkpoint with its variables."""
    return Command("get", {"checkpoint": checkpoint}, reading.read_get)


def checkpoint(comment: str = "", label: str | None = None, pin: bool = False) -> Command[Record]:
    """Make a checkpoint."""
    args = {"comment": comment, "label": label, "pin": pin}
    return Command("checkpoint", args, reading.read_checkpoint)


def restore(asked: RestoreRequest) -> Command[RestoreResult]:
    """Go back, or tell what going back would change."""
    return Command("restore", asked.args(), reading.read_restore)


def bring(checkpoint: Spec, names: Sequence[str]) -> Command[Brought]:
    """Bring single variables into the present."""
    return Command("bring", {"checkpoint": checkpoint, "names": list(names)}, reading.read_brought)


def bring_files(checkpoint: Spec, paths: Sequence[str]) -> Command[Brought]:
    """Bring single files and directories of the workspace into the present."""
    return Command("bring", {"checkpoint": checkpoint, "paths": list(paths)}, reading.read_brought)


def changes(checkpoints: Sequence[Spec]) -> Command[tuple[Changes, ...]]:
    """What each of these changed since its parent."""
    return Command("changes", {"checkpoints": list(checkpoints)}, reading.read_changes)


def file(path: str, checkpoint: Spec | None = None, root: str | None = None) -> Command[ShownFile]:
    """A file as it was, or as it is."""
    args: dict[str, Any] = {"path": path, "root": root}
    if checkpoint is not None:
        args["checkpoint"] = checkpoint
    return Command("file", args, reading.read_file)


def show(checkpoint: Spec, names: Sequence[str]) -> Command[tuple[ShownVariable, ...]]:
    """Variables as a notebook would show them."""
    args = {"checkpoint": checkpoint, "names": list(names)}
    return Command("show", args, reading.read_shown)


def keep_document(
    checkpoint: str, cells: Sequence[dict[str, Any]], trusted: bool = False
) -> Command[bool]:
    """Keep the cells of the notebook with a checkpoint."""
    order = [{"cell": place, "trusted": trusted} for place in range(len(cells))]
    return Command(
        "keep_document",
        {"cells": list(cells), "documents": [{"checkpoint": checkpoint, "cells": order}]},
        lambda result: bool(result["kept"]),
    )


def document(checkpoint: Spec) -> Command[tuple[DocumentCell, ...]]:
    """The cells of the notebook as it was."""
    return Command("document", {"checkpoint": checkpoint}, reading.read_document)


def resume(force: bool = False, reseed: bool = False) -> Command[RestoreResult]:
    """Go on with the newest state from before this kernel that is on the disk."""
    args = {"force": force, "reseed": True} if reseed else {"force": force}
    return Command("resume", args, reading.read_restore)


def verify(checkpoint: Spec | None = None) -> Command[tuple[Verified, ...]]:
    """Load what is on the disk for real, in a scratch process; None: of every checkpoint."""
    args = {} if checkpoint is None else {"checkpoint": checkpoint}
    return Command("verify", args, reading.read_verified)


def replay(
    checkpoint: Spec,
    skip: Sequence[Spec] = (),
    until: Spec | None = None,
    stop_on_difference: bool = False,
    dry_run: bool = False,
) -> Command[ReplayResult]:
    """Go back and run again what had run after, or tell what that would run."""
    args = {
        "checkpoint": checkpoint,
        "skip": list(skip),
        "until": until,
        "stop_on_difference": stop_on_difference,
        "dry_run": dry_run,
    }
    return Command("replay", args, reading.read_replay)


def cells(since: Spec | None = None, until: Spec | None = None) -> Command[list[CellRecord]]:
    """The cells that led from a checkpoint, or a fresh process, to another, or the present."""
    return Command("cells", {"since": since, "until": until}, reading.read_cells)


def diff(a: Spec, b: Spec | None = None) -> Command[Differences]:
    """What happened from ``a`` to ``b``, or to the present."""
    return Command("diff", {"a": a, "b": b}, reading.read_differences)


def label(checkpoint: Spec, label: str | None) -> Command[Record]:
    """Set or take away a label."""
    return Command("label", {"checkpoint": checkpoint, "label": label}, reading.read_checkpoint)


def comment(checkpoint: Spec, comment: str) -> Command[Record]:
    """Say something else of a checkpoint; "" takes the comment away."""
    args = {"checkpoint": checkpoint, "comment": comment}
    return Command("comment", args, reading.read_checkpoint)


def pin(checkpoint: Spec, pinned: bool = True) -> Command[Record]:
    """Keep a checkpoint from being evicted or deleted, or no longer."""
    return Command("pin", {"checkpoint": checkpoint, "pinned": pinned}, reading.read_checkpoint)


def delete(checkpoint: Spec) -> Command[Record]:
    """Delete a checkpoint; its children then hang on its parent."""
    return Command(
        "delete", {"checkpoint": checkpoint}, lambda result: reading.read_record(result["deleted"])
    )


def config(settings: dict[str, Any]) -> Command[dict[str, Any]]:
    """Change options, and tell them all."""
    return Command("config", {"set": settings}, lambda result: dict(result["config"]))


def reset(process: bool = False) -> Command[ResetResult]:
    """Throw away what was written outside of the workspace."""
    return Command("reset", {"process": process}, reading.read_reset)


def outside(each: bool = False) -> Command[Outside]:
    """What was written outside of the workspace and the host does not have."""
    return Command("outside", {"each": each}, reading.read_outside)


def apply(
    paths: Sequence[str] = (), dry_run: bool = False, force: bool = False
) -> Command[Applied]:
    """Copy such files and directories to the host."""
    args = {"paths": list(paths), "dry_run": dry_run, "force": force}
    return Command("apply", args, reading.read_applied)


def groups() -> Command[tuple[GroupState, ...]]:
    """All groups of sessions."""
    return Command("groups", {}, group_records.read_groups, of_server=True)


def group(name: str) -> Command[GroupState]:
    """One group, and where its members are."""
    return Command("group", {"group": name}, group_records.read_group, of_server=True)


def create_group(name: str, members: Sequence[str]) -> Command[GroupState]:
    """Make a group of sessions of the server."""
    args = {"group": name, "members": list(members)}
    return Command("group_create", args, group_records.read_group, of_server=True)


def checkpoint_group(
    name: str, comment: str = "", allow_partial: bool = False, wait: float = 20.0
) -> Command[GroupRecord]:
    """Capture all members of a group at one moment."""
    args = {"group": name, "comment": comment, "allow_partial": allow_partial, "timeout": wait}
    read = group_records.read_group_checkpoint
    return Command("group_checkpoint", args, read, of_server=True)


def restore_group(
    name: str,
    record: int | str | None = None,
    member: str | None = None,
    undo: bool = False,
    dry_run: bool = False,
    allow_partial: bool = False,
    wait: float = 20.0,
) -> Command[GroupRestored]:
    """Take all members of a group back, or one, or tell what that would change."""
    args: dict[str, Any] = {
        "group": name,
        "record": None if record is None else str(record),
        "member": member,
        "undo": undo,
        "dry_run": dry_run,
        "allow_partial": allow_partial,
        "timeout": wait,
    }
    return Command("group_restore", args, group_records.read_group_restored, of_server=True)


def subscribe() -> Command[bool]:
    """Ask for events."""
    return Command("subscribe", {"events": True}, lambda result: bool(result["events"]))


def absolute_path(path: str) -> str:
    """A path of an argument, without symlinks on the way to it; it may be one itself."""
    directory, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    return os.path.join(os.path.realpath(directory), name)


def error_of(ename: str, evalue: str) -> TimeTravelError:
    """The error that a reply tells of, as its own class where this side knows it."""
    known: list[type[TimeTravelError]] = [TimeTravelError]
    for kind in known:  # grows while it is read: the classes below each class
        if kind.__name__ == ename:
            # Made without its constructor, whose arguments did not travel.
            return kind.__new__(kind, evalue)
        known.extend(kind.__subclasses__())
    return TimeTravelError(f"{ename}: {evalue}")
