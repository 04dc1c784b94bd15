"""The supervisor's end of a stand-in: what can be read of the newest checkpoint under DMTCP.

The other end is kernel_runtime.executor.stand_in: a fork of the executor, of which copies are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Sequence
from typing import Final

from kernel_runtime.errors import CheckpointRefused
from kernel_runtime.sandbox.base import Sandbox

_ANSWER_S: Final = 20.0
_PID: Final = 16


class StandIn:
    """One stand-in, of one checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._control, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._asking = asyncio.Lock()
        self._pids: list[int] = []
        """As seen inside: its own, then those of its copies."""

    async def copy(self, fds: Sequence[int]) -> int:
        """Have a copy answer at these descriptors; return its pid. Raises CheckpointRefused."""
        async with self._asking:
            try:
                await self._know()
                socket.send_fds(self._control, [b"copy"], list(fds))
                return await self._said()
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                raise CheckpointRefused(
                    f"The session could not be copied under DMTCP: {error or 'no answer'}"
                ) from error

    async def end(self, sandbox: Sandbox) -> list[int]:
        """Kill it, and its copies with it; return their pids."""
        async with self._asking:
            with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
                await self._know()
                # its copies end with it (PR_SET_PDEATHSIG)
                await sandbox.signal(self._pids[0], signal.SIGKILL, group=False)
            self.close()
            return self._pids

    def close(self) -> None:
        """It ends when it sees that."""
        self._control.close()

    async def _know(self) -> None:
        if not self._pids:
            await self._said()

    async def _said(self) -> int:
        loop = asyncio.get_running_loop()
        text = await asyncio.wait_for(loop.sock_recv(self._control, _PID), _ANSWER_S)
        if not text:
            raise ConnectionError("there is no process to copy")
        self._pids.append(int(text))
        return self._pids[-1]
