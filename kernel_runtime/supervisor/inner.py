"""Code that the supervisor runs in the executor as a cell, within another cell or a command.

The executor gets it under the header of the cell that asks, so whatever it prints or shows is
output of that cell on the page; its status, its input and its reply stay in the supervisor.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from kernel_runtime.supervisor.request import Request

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


class InnerCells:
    """Runs such cells, one at a time; the caller holds the queue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.interrupted = False
        """Whether the user has interrupted since this was last set to False."""

    async def run(
        self,
        code: str,
        asker: Request | None,
        *,
        cell_id: str | None = None,
        is_cell: bool = True,
    ) -> Request:
        """Run code to its end; the request that is returned has the reply.

        asker: the cell that is to show its output, and that is in flight; None: a command asks.
        is_cell: else it leaves no trace in the history and in the list of cells.
        """
        session = self._session
        router = session.router
        message, identities, header = self._as_from(asker)
        content = {
            "code": code,
            "silent": False,
            "store_history": is_cell,
            "user_expressions": {},
            "allow_stdin": bool(asker is not None and asker.content.get("allow_stdin", False)),
            "stop_on_error": False,
        }
        metadata = {"cellId": cell_id} if cell_id is not None else {}
        frames = [header, b"{}", json.dumps(metadata).encode(), json.dumps(content).encode()]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = Request(
            identities, {**message, "metadata": metadata}, frames, content, inner=done
        )
        router.run_inner(request)
        try:
            await done
        finally:
            router.in_flight = asker
        return request

    def _as_from(self, asker: Request | None) -> tuple[dict[str, Any], list[bytes], bytes]:
        if asker is not None:
            return asker.message, asker.identities, asker.frames[0]
        session = self._session.channels.session
        message = session.msg("execute_request", {})
        header = session.pack(message["header"])
        return message, [], header
