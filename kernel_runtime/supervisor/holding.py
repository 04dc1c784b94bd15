"""Holding the queue for somebody outside, who brings several kernels to one moment (groups).

A hold is a lease: it ends by itself when its time is over, so that nobody stays held by a program
that died. Only a session at rest is held: no cell runs or waits, nothing is being restored.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.errors import BadRequest, RestoreRefused

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

LONGEST_S: Final = 60.0
"""Seconds that one lease lasts at most; whoever needs more renews it."""

_HOLD: Final = "lease"
_LOOK_S: Final = 0.01


class Holding:
    """The one lease of a session, if there is one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lease: str | None = None
        self._end: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._ended.set()

    async def hold(self, lease: str, seconds: float, wait: float, renew: bool) -> dict[str, Any]:
        """Hold the queue for so many seconds, or with 0 say whether that could be done.

        wait: seconds until which the session may come to rest. renew: only go on with a lease that
        has not ended. Raises BadRequest.
        """
        if not lease or not 0 <= seconds <= LONGEST_S or not 0 <= wait <= LONGEST_S:
            raise BadRequest(
                f"A lease has a name, and seconds and wait are 0 to {LONGEST_S:g}. Nothing was "
                "held."
            )
        if self._lease == lease or renew:
            return {"held": self._lease == lease and self._begin(lease, seconds), "why": None}
        end = time.monotonic() + wait
        while (why := self._why_not()) is not None and time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
        held = why is None and seconds > 0 and self._begin(lease, seconds)
        return {"held": held, "why": why}

    def release(self, lease: str) -> bool:
        """Let the queue go on; False if this lease had ended."""
        if self._lease != lease:
            return False
        assert self._end is not None
        self._end.cancel()
        self._lease = self._end = None
        self._ended.set()
        self._session.router.release(_HOLD)
        return True

    async def not_by_another(self, lease: str | None) -> None:
        """Wait until nobody but the owner of that lease holds the session.

        Raises RestoreRefused for the owner of a lease that has ended.
        """
        if lease is not None and lease != self._lease:
            raise RestoreRefused(
                "The hold for the group had ended before this began. Nothing was changed."
            )
        while self._lease is not None and self._lease != lease:
            await self._ended.wait()

    def _begin(self, lease: str, seconds: float) -> bool:
        if self._lease is None:
            self._session.router.hold(_HOLD)
        if self._end is not None:
            self._end.cancel()
        self._lease = lease
        self._ended.clear()
        self._end = asyncio.get_running_loop().call_later(seconds, self.release, lease)
        return True

    def _why_not(self) -> str | None:
        """What keeps the session from being held now, in a word."""
        session = self._session
        if session.is_ending:
            return "ending"
        if session.rescue.active:
            return "no process"
        if self._lease is not None:
            return "held"
        return None if session.router.at_rest and not session.lock.locked() else "busy"
