"""One member's kernel as the coordinator of a group asks it. Says which member failed, and how."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

from jupyter_timetravel.access import running
from jupyter_timetravel.access.errors import NoSuchKernel
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.async_client import AsyncClient
from jupyter_timetravel.commands import Command
from jupyter_timetravel.groups.errors import MemberFailed
from jupyter_timetravel.wire import NoTimeTravel, RequestTimeout
from kernel_runtime.errors import TimeTravelError
from kernel_runtime.supervisor.restore_request import RestoreRequest
from kernel_runtime.timeline.groups import Member

ANSWER_S: Final = 3.0
"""Seconds within which a supervisor that is well answers what needs no work."""
LEASE_S: Final = 4.0
"""Seconds that a member stays held by a coordinator that died."""
RESTORE_S: Final = 120.0
"""Seconds that one member's restore may take."""
_RENEW_S: Final = 1.0
_LOOK_S: Final = 0.5


class Link:
    """A connection to a member's kernel; to be closed."""

    def __init__(self, member: Member, kernel: RunningKernel) -> None:
        self.member = member
        self.kernel = kernel
        self._client = AsyncClient.from_connection_file(kernel.connection_file)
        # an answer that takes long must not keep a lease from being renewed
        self._keeper = AsyncClient.from_connection_file(kernel.connection_file)
        self._renewing: asyncio.Task[None] | None = None
        self.lapsed = False
        """Whether its lease ended before it was released."""

    @property
    def name(self) -> str:
        """The member's."""
        return self.member.name

    async def close(self) -> None:
        """Let go of the connection."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        self._client.close()
        self._keeper.close()

    async def ask(self, command: str, within: float = ANSWER_S, /, **args: Any) -> dict[str, Any]:
        """The result of a command. within: seconds. Raises MemberFailed."""
        self._client.timeout = max(0.1, within)
        asking = asyncio.ensure_future(self._client.ask(Command(command, args, dict)))
        try:
            while not (await asyncio.wait([asking], timeout=_LOOK_S))[0]:
                if not await asyncio.to_thread(running.is_there, self.kernel):
                    raise self.failed("dead", "its kernel has ended")
            return dict(asking.result())
        except RequestTimeout:
            if not await asyncio.to_thread(running.is_there, self.kernel):
                raise self.failed("dead", "its kernel has ended") from None
            raise self.failed(
                "not answering", f"no answer to {command} within {within:.0f} s"
            ) from None
        except TimeTravelError as error:
            if isinstance(error, MemberFailed):
                raise
            raise self.failed("refused", str(error)) from error
        finally:
            asking.cancel()

    async def restore(self, asked: RestoreRequest) -> dict[str, Any]:
        """Restore it, or say what that would do. Raises MemberFailed."""
        return await self.ask("restore", RESTORE_S, **asked.args())

    def failed(self, reason: Any, text: str) -> MemberFailed:
        """The error that names this member."""
        return MemberFailed(self.name, reason, text)

    async def rest(self, wait: float) -> str | None:
        """None once it is at rest; after so many seconds why not. Raises MemberFailed."""
        told = await self.ask("hold", wait + ANSWER_S, lease="-", seconds=0, wait=wait)
        why: str | None = told["why"]
        if why == "no process":
            raise self.failed("no process", "its Python does not start")
        return why

    async def hold(self, lease: str) -> bool:
        """Hold it, if it is at rest, until it is released. Raises MemberFailed."""
        self.lapsed = False
        if not (await self.ask("hold", lease=lease, seconds=LEASE_S))["held"]:
            return False
        self._renewing = asyncio.ensure_future(self._renew(lease))
        return True

    async def check(self, lease: str) -> None:
        """Raise MemberFailed unless it was held all the time."""
        told = await self.ask("hold", lease=lease, seconds=LEASE_S, renew=True)
        if self.lapsed or not told["held"]:
            raise self.failed("not answering", "it was not held for long enough")

    async def release(self, lease: str) -> None:
        """Let it go on; one that does not answer goes on by itself."""
        if self._renewing is None:
            return
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        self._renewing = None
        try:
            # over the second connection: the first may wait for what is not done yet
            self._keeper.timeout = ANSWER_S / 2
            await self._keeper.ask(Command("release", {"lease": lease}, dict))
        except TimeTravelError:
            pass

    async def _renew(self, lease: str) -> None:
        args = {"lease": lease, "seconds": LEASE_S, "renew": True}
        self._keeper.timeout = LEASE_S
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                told = await self._keeper.ask(Command("hold", args, dict))
            except TimeTravelError:
                continue  # the next one, or what it is asked to do, says that it is gone
            self.lapsed = self.lapsed or not told["held"]


async def connect(members: Iterable[Member]) -> tuple[list[Link], list[MemberFailed]]:
    """Links to those that can be reached, and why the others cannot."""
    wanted = list(members)
    found = await asyncio.gather(
        *(asyncio.to_thread(find, member) for member in wanted), return_exceptions=True
    )
    links, problems = [], []
    for member, one in zip(wanted, found):
        if isinstance(one, RunningKernel):
            links.append(Link(member, one))
        elif isinstance(one, MemberFailed):
            problems.append(one)
        elif isinstance(one, BaseException):
            raise one
    return links, problems


def find(member: Member) -> RunningKernel:
    """The kernel that runs for a member now. Raises MemberFailed."""
    try:
        kernel = running.at(member.connection_file, ANSWER_S)
        if kernel.timeline == member.timeline:
            return kernel
    except RequestTimeout as error:
        raise MemberFailed(member.name, "not answering", str(error)) from error
    except (NoSuchKernel, NoTimeTravel):
        pass  # a kernel that was started again has another file
    for kernel in running.survey(ANSWER_S):
        if kernel.timeline == member.timeline:
            return kernel
    raise MemberFailed(member.name, "dead", "no kernel runs for it")


def left(deadline: float, least: float = 0.0) -> float:
    """Seconds until a moment of the monotonic clock, ``least`` at least."""
    return max(least, deadline - time.monotonic())
