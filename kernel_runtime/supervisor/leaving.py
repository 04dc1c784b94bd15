"""The executor gets ready to leave while a restore is planned, and then leaves or stays.

Ready, it has stopped and described itself as for any freeze, and becomes a frozen process when told
(native/timetravel.h, TT_LEAVE). A restore that is refused lets it go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from kernel_runtime.engines.base import Frozen
from kernel_runtime.errors import CheckpointRefused
from kernel_runtime.timeline.model import new_id

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_LEAVE: Final = b"\x01"  # TT_LEAVE
_STAY_S: Final = 2.0
"""Seconds that a refused restore waits until it goes on: at once, if nobody has stopped it."""


class Leaving:
    """One executor that is ready to leave, or soon will be. The caller holds the session's lock."""

    def __init__(self, session: Session) -> None:
        """Have it get ready. It waits for a second at most, then it goes on by itself. Raises
        OSError."""
        assert session.executor is not None
        self.id = new_id()
        """Of the checkpoint that it leaves for."""
        self._session = session
        self._executor = session.executor
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._freezing = asyncio.ensure_future(self._freeze())

    async def _freeze(self) -> Frozen:
        with self._theirs:
            return await self._session.engine.freeze(
                self._executor, self.id, move=True, hold=self._theirs.fileno()
            )

    async def leave(self) -> Frozen | None:
        """Have it leave; return the frozen process, or None where it goes on, and can be frozen as
        any other."""
        with self._ours:
            with contextlib.suppress(OSError):  # it has gone on by itself
                self._ours.send(_LEAVE)
            with contextlib.suppress(CheckpointRefused, OSError):
                return await self._freezing
        return None

    async def stay(self) -> None:
        """Have it go on, unless it was told to leave."""
        if self._ours.fileno() < 0:
            return
        self._ours.close()
        self._freezing.add_done_callback(self._has_stayed)
        await asyncio.wait([self._freezing], timeout=_STAY_S)

    def _has_stayed(self, freezing: asyncio.Future[Frozen]) -> None:
        if freezing.cancelled() or freezing.exception() is None:
            return
        session = self._session
        if session.executor is self._executor and not self._executor.alive:
            session.executor_lost(self._executor)  # it has died, which had looked as if it left
