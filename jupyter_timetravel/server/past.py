"""A session without a kernel of this server: the same commands, carried out on the store.

Each runs in a thread, with a store of its own. What changes something takes the timeline first, so
that no kernel can start on it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jupyter_timetravel import commands
from jupyter_timetravel.offline import differences, editing, pruning, restoring, stored, verifying
from jupyter_timetravel.offline.stored import Session
from jupyter_timetravel.records import Result
from jupyter_timetravel.server import store as stores
from jupyter_timetravel.server.errors import NeedsKernel
from jupyter_timetravel.server.live import Tell
from kernel_runtime.errors import BadRequest
from kernel_runtime.timeline import Checkpoint
from kernel_runtime.timeline.cells import Placed, along, from_fresh
from kernel_runtime.timeline.model import VOLATILE_ENGINES
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.variables import public_variables


class PastSession:
    """One timeline of the store."""

    def __init__(self, id: str, name: str) -> None:
        """name: of its notebook, for messages."""
        self.id = id
        self._name = name

    async def run(self, command: str, args: Mapping[str, Any], tell: Tell | None = None) -> Result:
        """The result of a command. Raises NeedsKernel for what the store alone cannot do."""
        work = _WORK.get(command)
        if work is None:
            raise NeedsKernel(
                f"No kernel runs on {self._name} here, and {command} needs one. Nothing was done; "
                "open the notebook with the kernel Python 3 (time travel), and ask that."
            )
        if tell is not None:
            tell({"type": "info", "text": f"{command}: {self._name}"})
        return await stores.in_thread(work, self.id, **args)


def _looked_at(session: Session, checkpoint: Checkpoint, **options: Any) -> dict[str, Any]:
    """Its record; frozen processes have ended with their kernel."""
    record = session.timeline.record(checkpoint, **options)
    if not session.info.in_use:
        for capture in record["captures"]:
            if capture["engine"] in VOLATILE_ENGINES and capture["state"] == "ready":
                capture.update(state="evicted", bytes=0, error="ended with its kernel")
    return record


def _list(id: str, include_auto: bool = True, history: Spec | None = None) -> Result:
    with stores.opened() as store:
        session = stored.look(store, stores.find(store, id))
        timeline = session.timeline
        chosen = list(timeline)
        if history is not None:
            newest = _named(session, history)
            wanted = {*timeline.history(newest.id), newest.id}
            chosen = [c for c in chosen if c.id in wanted]
        if not include_auto:
            chosen = [c for c in chosen if not c.is_auto]
        return {
            "checkpoints": [_looked_at(session, c, history=False) for c in chosen],
            "parents": timeline.parents(),
            "head": timeline.head.id if timeline.head else None,
        }


def _get(id: str, checkpoint: Spec) -> Result:
    with stores.opened() as store:
        session = stored.look(store, stores.find(store, id))
        found = _named(session, checkpoint)
        return {
            "checkpoint": _looked_at(session, found),
            "variables": public_variables(found.variables),
            "cells": [Placed(cell, found).record() for cell in found.cells],
        }


def _cells(id: str, since: Spec | None = None, until: Spec | None = None) -> Result:
    with stores.opened() as store:
        session = stored.look(store, stores.find(store, id))
        timeline = session.timeline
        end = _named(session, until) if until is not None else timeline.head
        to = None if end is None else end.id
        if since is None:
            found = from_fresh(timeline, to)
        else:
            found = list(along(timeline, _named(session, since).id, to))
        return {"cells": [placed.record() for placed in found]}


def _diff(id: str, a: Spec, b: Spec | None = None) -> Result:
    with stores.opened() as store:
        session = stored.look(store, stores.find(store, id))
        second = _named(session, b) if b is not None else None
        return differences.compared(session, _named(session, a), second)


def _restore(
    id: str,
    checkpoint: Spec = -1,
    only: str | None = None,
    dry_run: bool = False,
    undo: bool = False,
    force: bool = False,
    compensate: bool = False,
) -> Result:
    if only == "process" or undo or compensate:
        raise BadRequest(
            "Without a kernel only files can be restored, by the number of a checkpoint; what was "
            "there before is a checkpoint too. Nothing was done."
        )
    with stores.opened() as store:
        info = stores.find(store, id)
        session = stored.look(store, info) if dry_run else stored.take(store, info)
        return restoring.restored(session, _named(session, checkpoint), dry_run=dry_run)


def _edit(id: str, checkpoint: Spec, **changes: Any) -> Result:
    with stores.opened() as store:
        session = stored.take(store, stores.find(store, id))
        made = editing.changed(session, _named(session, checkpoint), **changes)
        return {"checkpoint": session.timeline.record(made)}


def _label(id: str, checkpoint: Spec, label: str | None) -> Result:
    if label == "":
        raise BadRequest("'' cannot be a label; null takes it away. Nothing was done.")
    return _edit(id, checkpoint, label=label)


def _comment(id: str, checkpoint: Spec, comment: str) -> Result:
    return _edit(id, checkpoint, comment=comment if comment.strip() else "")


def _pin(id: str, checkpoint: Spec, pinned: bool = True) -> Result:
    return _edit(id, checkpoint, pinned=pinned)


def _delete(id: str, checkpoint: Spec) -> Result:
    with stores.opened() as store:
        session = stored.take(store, stores.find(store, id))
        found = _named(session, checkpoint)
        record = session.timeline.record(found)
        pruning.delete_one(session, found)
        return {"deleted": record}


def _verify(id: str, checkpoint: Spec | None = None) -> Result:
    with stores.opened() as store:
        info = stores.find(store, id)
        verifying.check(store, info)
        target = None
        if checkpoint is not None:
            target = _named(stored.look(store, info), checkpoint).number
        directory = store.directory
    # the store is closed by now: the kernel that is started takes the timeline
    return verifying.asked(info, directory, commands.verify(target))


def _named(session: Session, spec: Spec) -> Checkpoint:
    return session.timeline.resolve(spec)


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
