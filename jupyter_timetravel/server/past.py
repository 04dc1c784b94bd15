"""A session without a kernel of this server: the store answers, in a thread for each command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jupyter_timetravel.offline import carrying
from jupyter_timetravel.records import Result
from jupyter_timetravel.server import store as stores
from jupyter_timetravel.server.live import Tell
from kernel_runtime.store.database import Store, TimelineInfo


class PastSession:
    """One timeline of the store."""

    def __init__(self, id: str, name: str) -> None:
        """name: of its notebook, for messages."""
        self.id = id
        self._name = name

    async def run(self, command: str, args: Mapping[str, Any], tell: Tell | None = None) -> Result:
        """The result of a command. Raises NotRunning for what the store alone cannot do."""
        if tell is not None:
            tell({"type": "info", "text": f"{command}: {self._name}"})
        return await stores.in_thread(carrying.carry_out, self._opened, command, args)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Store, TimelineInfo]]:
        with stores.opened() as store:
            yield store, stores.find(store, self.id)
