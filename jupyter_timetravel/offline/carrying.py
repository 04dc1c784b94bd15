"""The commands of docs/protocol.md, carried out on a stored session: no kernel runs for it.

The command line, the MCP server and REST use it; nothing of a namespace is loaded here. What
changes something takes the timeline first, so that no kernel can start on it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from jupyter_timetravel import commands
from jupyter_timetravel.offline import differences, editing, pruning, restoring, stored, verifying
from jupyter_timetravel.offline.stored import NotRunning, Session
from jupyter_timetravel.records import Result
from jupyter_timetravel.remote import fit
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.cells import Placed, along, from_fresh
from kernel_runtime.timeline.model import VOLATILE_ENGINES
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.variables import public_variables

Opened = Callable[[], AbstractContextManager[tuple[Store, TimelineInfo]]]
"""Opens the store, and finds the timeline in it; it is open during a command only."""


def carry_out(opened: Opened, command: str, args: Mapping[str, Any]) -> Result:
    """The result of a command. Raises NotRunning for what the store alone cannot do."""
    work = _WORK.get(command)
    if work is None:
        raise needs_kernel(opened, command)
    return work(opened, **args)


def needs_kernel(opened: Opened, what: str) -> NotRunning:
    """The error for what only a running kernel can do."""
    with opened() as (_, info):
        name = stored.name_of(info)
    return NotRunning(
        f"No kernel runs for {name}, and {what} needs one. Nothing was done; open the notebook "
        "with the kernel Python 3 (time travel), and ask that."
    )


def _look(found: tuple[Store, TimelineInfo]) -> Session:
    return stored.look(*found)


def _take(found: tuple[Store, TimelineInfo]) -> Session:
    return stored.take(*found)


def _looked_at(session: Session, checkpoint: Checkpoint, **options: Any) -> dict[str, Any]:
    """Its record; frozen processes have ended with their kernel."""
    record = session.timeline.record(checkpoint, **options)
    if not session.info.in_use:
        for capture in record["captures"]:
            if capture["engine"] in VOLATILE_ENGINES and capture["state"] == "ready":
                capture.update(state="evicted", bytes=0, error="ended with its kernel")
    return record


def _list(opened: Opened, include_auto: bool = True, history: Spec | None = None) -> Result:
    with opened() as found:
        session = _look(found)
        timeline = session.timeline
        chosen = list(timeline)
        if history is not None:
            newest = session.checkpoint(history)
            wanted = {*timeline.history(newest.id), newest.id}
            chosen = [c for c in chosen if c.id in wanted]
        if not include_auto:
            chosen = [c for c in chosen if not c.is_auto]
        return {
            "checkpoints": [_looked_at(session, c, history=False) for c in chosen],
            "parents": timeline.parents(),
            "head": timeline.head.id if timeline.head else None,
        }


def _get(opened: Opened, checkpoint: Spec) -> Result:
    with opened() as found:
        session = _look(found)
        named = session.checkpoint(checkpoint)
        return {
            "checkpoint": _looked_at(session, named),
            "variables": public_variables(named.variables),
            "cells": [Placed(cell, named).record(output=True) for cell in named.cells],
            "restorable_here": fit.lines_here(named, session.store.directory),
        }


def _cells(opened: Opened, since: Spec | None = None, until: Spec | None = None) -> Result:
    with opened() as found:
        session = _look(found)
        timeline = session.timeline
        end = session.checkpoint(until) if until is not None else timeline.head
        to = None if end is None else end.id
        if since is None:
            cells = from_fresh(timeline, to)
        else:
            cells = list(along(timeline, session.checkpoint(since).id, to))
        return {"cells": [placed.record() for placed in cells]}


def _diff(opened: Opened, a: Spec, b: Spec | None = None) -> Result:
    with opened() as found:
        session = _look(found)
        second = session.checkpoint(b) if b is not None else None
        return differences.compared(session, session.checkpoint(a), second)


def _restore(opened: Opened, **args: Any) -> Result:
    asked = RestoreRequest.read(args)
    beyond = {
        "seeding generators anew": asked.reseed,
        "restoring memory alone": asked.only == "process",
        "running what undoes effects": asked.compensate,
        "restoring chosen files": asked.paths is not None,
        "restoring a member of a group": asked.keep_notebooks or asked.lease is not None,
    }
    for what, is_asked in beyond.items():
        if is_asked:
            raise needs_kernel(opened, what)
    with opened() as found:
        session = _look(found) if asked.dry_run else _take(found)
        target = (
            session.timeline.last_safety if asked.undo else session.checkpoint(asked.checkpoint)
        )
        if target is None:
            raise BadRequest(
                f"{session.notebook} has had no restore that could be undone. Nothing was done."
            )
        return restoring.restored(session, target, dry_run=asked.dry_run, partial=asked.partial)


def _edit(opened: Opened, checkpoint: Spec, **changes: Any) -> Result:
    with opened() as found:
        session = _take(found)
        made = editing.changed(session, session.checkpoint(checkpoint), **changes)
        return {"checkpoint": session.timeline.record(made)}


def _label(opened: Opened, checkpoint: Spec, label: str | None) -> Result:
    if label == "":
        raise BadRequest("'' cannot be a label; null takes it away. Nothing was done.")
    return _edit(opened, checkpoint, label=label)


def _comment(opened: Opened, checkpoint: Spec, comment: str) -> Result:
    return _edit(opened, checkpoint, comment=comment if comment.strip() else "")


def _pin(opened: Opened, checkpoint: Spec, pinned: bool = True) -> Result:
    return _edit(opened, checkpoint, pinned=pinned)


def _delete(opened: Opened, checkpoint: Spec) -> Result:
    with opened() as found:
        session = _take(found)
        named = session.checkpoint(checkpoint)
        record = session.timeline.record(named)
        pruning.delete_one(session, named)
        return {"deleted": record}


def _verify(opened: Opened, checkpoint: Spec | None = None) -> Result:
    with opened() as found:
        store, info = found
        number = None
        if checkpoint is not None:
            number = _look(found).checkpoint(checkpoint).number
        verifying.check(store, info)
        directory = store.directory
    # the store is closed by now: the kernel that is started takes the timeline
    return verifying.asked(info, directory, commands.verify(number))


_WORK: Final[Mapping[str, Callable[..., Result]]] = {
    "list": _list,
    "get": _get,
    "cells": _cells,
    "diff": _diff,
    "restore": _restore,
    "label": _label,
    "comment": _comment,
    "pin": _pin,
    "delete": _delete,
    "verify": _verify,
}
