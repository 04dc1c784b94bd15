"""What the server loads: settings, the kernels' links, operations that are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from traitlets import Bool
from traitlets.config import LoggingConfigurable

from jupyter_timetravel.server.groups import Groups
from jupyter_timetravel.server.handlers import at
from jupyter_timetravel.server.kernels import Kernels
from jupyter_timetravel.server.publishing import Publishing
from jupyter_timetravel.server.sessions import Sessions

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

T = TypeVar("T")


class TimeTravelServer(LoggingConfigurable):
    """Time travel in a Jupyter server."""

    events = Bool(
        False,
        help="Emit events of running time-travel kernels to the server's event bus, under the "
        "schema urn:jupyter-timetravel:timeline:v1. The server then listens to each such kernel "
        "from its start.",
    ).tag(config=True)

    def __init__(self, serverapp: ServerApp) -> None:
        super().__init__(parent=serverapp)
        self.root = str(getattr(serverapp.contents_manager, "root_dir", "") or "")
        """The directory that paths of the server begin at; "" if it is none on a disk."""
        self.kernels = Kernels(serverapp.kernel_manager)
        self.sessions = Sessions(
            self.kernels, serverapp.kernel_manager, serverapp.session_manager, self.root
        )
        self.groups = Groups(self.sessions, serverapp.kernel_manager)
        self.publishing = Publishing(
            self.kernels, serverapp.event_logger, self.log, is_on=self.events
        )
        self._under_way: set[asyncio.Task[Any]] = set()

    def to_the_end(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Carry something out even if whoever waits for it goes away."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # it was told, or nobody waits for it any more


def load(serverapp: ServerApp) -> None:
    """Add time travel to a server."""
    extension = TimeTravelServer(serverapp)
    serverapp.web_app.settings["timetravel"] = extension
    application: Any = serverapp.web_app
    application.add_handlers(".*$", at(serverapp.base_url))
