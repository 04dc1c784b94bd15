"""Which sessions there are: running kernels of this server, and what the store holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jupyter_core.utils import ensure_async

from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import NoSuchSession
from jupyter_timetravel.server import store as stores
from jupyter_timetravel.server.kernels import Kernels, no_kernel
from jupyter_timetravel.server.live import LiveSession
from jupyter_timetravel.server.past import PastSession
from jupyter_timetravel.wire import NoTimeTravel
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.store.database import Store, TimelineInfo

_ANSWER_S: Final = 5.0
"""Seconds that the list waits for a kernel to say where it stands."""

Row = dict[str, Any]


class Sessions:
    """Finds and describes sessions. A running one is called by its kernel's id."""

    def __init__(
        self, kernels: Kernels, kernel_manager: Any, session_manager: Any, root: str
    ) -> None:
        """root: the directory that the server's paths begin at, or "" if that is none."""
        self._kernels = kernels
        self._kernel_manager = kernel_manager
        self._session_manager = session_manager
        self._root = os.path.realpath(root) if root else ""

    async def find(self, id: str) -> LiveSession | PastSession:
        """By a kernel's id, or by a timeline's. Raises NoSuchSession, StoreError.

        A timeline that a kernel of this server has is that kernel's session.
        """
        if id in self._kernels:
            return LiveSession(id, self._kernels.link(id))
        info = await stores.in_thread(_info, id)
        if info.in_use:
            for row in await self._live():
                if row["timeline"] == info.id:
                    return LiveSession(row["id"], self._kernels.link(row["id"]))
        return PastSession(info.id, stored.name_of(info))

    async def kernel_of(self, notebook: str) -> str | None:
        """The kernel that has a notebook, by its path as the server names it, if just one has."""
        wanted = notebook.strip("/")
        found = {id for id, path in (await self._notebooks()).items() if path == wanted}
        return found.pop() if len(found) == 1 else None

    async def describe(self, id: str) -> Row:
        """One session. Raises NoSuchSession, StoreError."""
        if id in self._kernels:
            return await self._live_row(id, await self._notebooks())
        info = await stores.in_thread(_info, id)
        rows = await self._live() if info.in_use else []
        for row in rows:
            if row["timeline"] == info.id:
                return row
        return await stores.in_thread(self._past_row, info.id)

    async def listing(self, *, notebook: str | None = None, live: bool | None = None) -> list[Row]:
        """All sessions, those with a kernel first. notebook: only those of that path."""
        rows = await self._live()
        if live is not True:
            timelines = {row["timeline"] for row in rows}
            past = await stores.in_thread(self._past)
            rows = [] if live is False else rows
            rows = [*rows, *(row for row in past if row["timeline"] not in timelines)]
        if notebook is not None:
            wanted = notebook.strip("/")
            rows = [row for row in rows if row["notebook"] == wanted]
        return rows

    # Running kernels

    async def _notebooks(self) -> Mapping[str, str]:
        """Paths by kernel, as the server has them."""
        found: Iterable[Mapping[str, Any]]
        found = await ensure_async(self._session_manager.list_sessions())
        return {one["kernel"]["id"]: one["path"] for one in found if one.get("kernel")}

    async def _live(self) -> list[Row]:
        notebooks = await self._notebooks()
        ids = self._kernels.ids()
        found = (self._live_row(id, notebooks) for id in ids)
        rows = await asyncio.gather(*found, return_exceptions=True)
        for row in rows:
            if isinstance(row, BaseException) and not isinstance(row, NoSuchSession):
                raise row
        return [row for row in rows if not isinstance(row, BaseException)]  # others ended just now

    async def _live_row(self, id: str, notebooks: Mapping[str, str]) -> Row:
        try:
            kernel = self._kernel_manager.get_kernel(id)
        except KeyError:
            raise no_kernel(id) from None
        notebook = notebooks.get(id)
        row = _row(id, kernel.kernel_name, str(getattr(kernel, "execution_state", "unknown")))
        row.update(live=True, kernel_id=id, notebook=notebook)
        if notebook is not None and self._root:
            row["file"] = os.path.join(self._root, *notebook.split("/"))
        try:
            link = self._kernels.link(id)
            status = await asyncio.wait_for(link.run("status", {}), _ANSWER_S)
        except NoTimeTravel as error:
            row.update(time_travel=False, problem=str(error))
        except TimeTravelError as error:
            row["problem"] = str(error)
        except asyncio.TimeoutError:
            row["problem"] = f"the kernel did not answer within {_ANSWER_S:g} seconds"
        else:
            head = status["head"]
            row.update(
                time_travel=True,
                timeline=status["timeline"],
                checkpoints=status["counts"]["checkpoints"],
                head=None if head is None else head["number"],
                last_at=None if head is None else head["created_at"],
            )
        return row

    # The store

    def _past(self) -> list[Row]:
        if not stores.has_store():
            return []
        with stores.opened() as store:
            return [self._stored_row(store, info) for info in store.timelines()]

    def _past_row(self, id: str) -> Row:
        with stores.opened() as store:
            return self._stored_row(store, stores.find(store, id))

    def _stored_row(self, store: Store, info: TimelineInfo) -> Row:
        row = _row(info.id, info.kernel_name, "in use" if info.in_use else "stored")
        newest, head = info.created_at, None
        try:
            timeline = store.look_at(info.id)
            newest = max([newest, *(c.created_at for c in timeline)])
            head = timeline.head
        except TimeTravelError as error:  # the others are to be seen all the same
            row["problem"] = str(error)
        row.update(
            time_travel=True,
            timeline=info.id,
            file=info.path,
            notebook=self._below_root(info.path),
            checkpoints=info.checkpoints,
            head=None if head is None else head.number,
            last_at=newest.isoformat(),
            trusted=info.origin is None or bool(info.origin.trusted),
        )
        return row

    def _below_root(self, path: str | None) -> str | None:
        if path is None or not self._root or not path.startswith(self._root.rstrip("/") + "/"):
            return None
        return os.path.relpath(path, self._root)


def _row(id: str, kernel_name: str, state: str) -> Row:
    return {
        "id": id,
        "live": False,
        "kernel_id": None,
        "timeline": None,
        "notebook": None,
        "file": None,
        "kernel_name": kernel_name,
        "state": state,
        "time_travel": None,
        "checkpoints": None,
        "head": None,
        "last_at": None,
        "trusted": True,
        "problem": None,
    }


def _info(id: str) -> TimelineInfo:
    if not stores.has_store():
        raise NoSuchSession(
            f"The server has no session {id[:200]!r}. Nothing was done; "
            "GET /api/timetravel/sessions lists what there is."
        )
    with stores.opened() as store:
        return stores.find(store, id)
