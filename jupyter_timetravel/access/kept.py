"""A session whose kernel does not run: the store is read, and nothing of it is executed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from jupyter_timetravel import commands
from jupyter_timetravel.access.errors import NotRunning
from jupyter_timetravel.access.session import Result
from jupyter_timetravel.commands import Only
from jupyter_timetravel.offline import pruning, stored, verifying
from jupyter_timetravel.offline.differences import compared
from jupyter_timetravel.offline.restoring import restored
from jupyter_timetravel.offline.stored import Session
from jupyter_timetravel.remote import fit
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.database import TimelineInfo
from kernel_runtime.timeline.cells import Placed
from kernel_runtime.timeline.names import Spec
from kernel_runtime.timeline.text import one_line
from kernel_runtime.timeline.variables import public_variables


class KeptAccess:
    """One timeline of a store. The store is open during a method only."""

    running = False

    def __init__(self, notebook: str, kernel_name: str | None, store: str | None) -> None:
        """Raises NoSuchSession, StoreError."""
        self._args = argparse.Namespace(notebook=notebook, kernel=kernel_name, store=store)
        with self._found() as (_, info):
            self.timeline = info.id
            self.title = one_line(stored.name_of(info), 200)

    @contextmanager
    def _found(self) -> Iterator[tuple[Callable[[], Session], TimelineInfo]]:
        with stored.opened(self._args) as store:
            info = stored.find(store, self._args)
            yield (lambda: stored.look(store, info)), info

    def status(self) -> Result:
        self._needs_kernel("status")

    def list(self, include_auto: bool = True, history: Spec | None = None) -> Result:
        with self._found() as (look, info):
            session = look()
            timeline = session.timeline
            chosen = list(timeline)
            if history is not None:
                end = session.checkpoint(str(history))
                wanted = {*timeline.history(end.id), end.id}
                chosen = [one for one in chosen if one.id in wanted]
            return {
                "timeline": timeline.id,
                "notebook": info.path,
                "running": info.in_use,
                "checkpoints": [
                    timeline.record(one, history=False)
                    for one in chosen
                    if include_auto or not one.is_auto
                ],
                "parents": timeline.parents(),
                "head": timeline.head.id if timeline.head else None,
            }

    def show(self, checkpoint: Spec) -> Result:
        with self._found() as (look, _):
            session = look()
            found = session.checkpoint(str(checkpoint))
            return {
                "checkpoint": session.timeline.record(found),
                "variables": public_variables(found.variables),
                "cells": [Placed(cell, found).record() for cell in found.cells],
                "restorable_here": fit.lines_here(found, session.store.directory),
            }

    def diff(self, a: Spec, b: Spec | None = None) -> Result:
        with self._found() as (look, _):
            session = look()
            second = session.checkpoint(str(b)) if b is not None else None
            return compared(session, session.checkpoint(str(a)), second)

    def checkpoint(self, comment: str = "", label: str | None = None, pin: bool = False) -> Result:
        self._needs_kernel("checkpoint")

    def restore(
        self,
        checkpoint: Spec = -1,
        only: Only | None = None,
        dry_run: bool = False,
        undo: bool = False,
        force: bool = False,
        compensate: bool = False,
        partial: bool = False,
        reseed: bool = False,
    ) -> Result:
        if only == "process" or compensate or reseed:
            self._needs_kernel("this")
        with stored.opened(self._args) as store:
            info = stored.find(store, self._args)
            session = stored.look(store, info) if dry_run else stored.take(store, info)
            target = session.timeline.last_safety if undo else session.checkpoint(str(checkpoint))
            if target is None:
                raise BadRequest(
                    f"{self.title} has had no restore that could be undone. Nothing was done."
                )
            return restored(session, target, dry_run=dry_run, partial=partial)

    def bring(self, checkpoint: Spec, names: Sequence[str]) -> Result:
        self._needs_kernel("bringing single variables")

    def replay(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> Result:
        self._needs_kernel("replay")

    def verify(self, checkpoint: Spec | None = None) -> Result:
        with stored.opened(self._args) as store:
            info = stored.find(store, self._args)
            number = None
            if checkpoint is not None:
                number = stored.look(store, info).checkpoint(str(checkpoint)).number
            verifying.check(store, info)
        # a kernel does it, which opens the store itself
        directory = stored.directory_of(self._args)
        return dict(verifying.asked(info, directory, commands.verify(number)))

    def delete(self, checkpoint: Spec) -> Result:
        with stored.opened(self._args) as store:
            session = stored.take(store, stored.find(store, self._args))
            found = session.checkpoint(str(checkpoint))
            record = session.timeline.record(found)
            pruning.delete_one(session, found)
            return {"deleted": record}

    def _needs_kernel(self, what: str) -> NoReturn:
        raise NotRunning(
            f"No kernel runs for {self.title}, and {what} needs one. Nothing was done; open the "
            "notebook with the kernel Python 3 (time travel) and run a cell."
        )
