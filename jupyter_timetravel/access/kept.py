"""A session whose kernel does not run: the store is read, and nothing of it is executed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_timetravel.commands import Command
from jupyter_timetravel.offline import carrying, stored
from jupyter_timetravel.records import Result
from kernel_runtime.store.database import Store, TimelineInfo
from kernel_runtime.timeline.text import one_line


class KeptAccess:
    """One timeline of a store. The store is open during a method only."""

    running = False

    def __init__(self, notebook: str, kernel_name: str | None, store: str | None) -> None:
        """Raises NoSuchSession, StoreError."""
        self._args = argparse.Namespace(notebook=notebook, kernel=kernel_name, store=store)
        with self._opened() as (_, info):
            self.title = one_line(stored.name_of(info), 200)

    def about(self) -> Result:
        with self._opened() as (_, info):
            return {"timeline": info.id, "notebook": info.path, "running": info.in_use}

    def ask(self, command: Command[Any]) -> Result:
        return carrying.carry_out(self._opened, command.name, command.args)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Store, TimelineInfo]]:
        with stored.opened(self._args) as store:
            yield store, stored.find(store, self._args)
