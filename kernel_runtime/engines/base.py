"""What an engine is to the supervisor. Engines are found through entry points, ours too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from kernel_runtime.later import dataclass
from kernel_runtime.timeline.model import Note

if TYPE_CHECKING:
    from kernel_runtime.engines.difference import Difference, Place
    from kernel_runtime.sandbox.base import Sandbox
    from kernel_runtime.store.image_model import Written


@dataclass
class Frozen:
    """A process that is a checkpoint. ``pid`` is as seen inside the sandbox."""

    checkpoint: str
    pid: int
    address: str
    threads: int = 0
    pause_ms: float = 0.0
    hot_bytes: int = 0
    """That it shares with the live process, which is likely to rewrite them."""
    rewritten_bytes: int = 0
    """Of those that were hot at first: what the cell before the last one has written, too."""
    not_captured: list[Note] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    proportional_bytes: int = 0
    measured_pid: int = 0
    """Whose these are: a difference becomes a process, which holds what its base does."""
    twin: Frozen | None = None
    difference: Difference | None = None
    """Set while there is no process yet, and pid is 0."""

    def needs(self, pid: int) -> bool:
        """Whether it is lost when that process ends."""
        return pid == (self.pid if self.difference is None else self.difference.base.pid)


@dataclass
class Woken:
    """What came of waking a frozen process: the new live one."""

    pid: int
    took_ms: float
    consumed: bool


class LiveExecutor(Protocol):
    """The executor, as far as an engine needs it."""

    pid: int

    @property
    def differences(self) -> bool:
        """Whether a freeze may be noted in place of a clone."""

    async def freeze(
        self,
        listener: int,
        address: str,
        *,
        move: bool,
        hold: int | None = None,
        difference: Place | None = None,
        base: int = 0,
    ) -> Frozen:
        """Have it freeze itself. Raises CheckpointRefused; then it runs on, untouched.

        With move the executor becomes the frozen process: it is gone when this returns. hold: a
        socket over which it tells that it has stopped, and is told to go on. difference: where it
        may write one from the process base, in place of a frozen process, whose pid is 0 then.
        """


class Waker(Protocol):
    """What an executor is woken by."""

    async def wake(self, frozen: Frozen, fds: Sequence[int]) -> Woken:
        """Start a live process in the frozen state; can be called again and again.

        fds: its link, its standard output, its standard error. Its old pid must be free.
        Raises RestoreFailed; then no process was started.
        """


class ProcessEngine(Waker, Protocol):
    """One way to freeze a whole process and to wake it. Holds no history."""

    name: str  # written in each checkpoint: never rename
    can_copy: bool  # whether any checkpoint can be read beside the live process (`copy`)
    starting: asyncio.Lock
    """Held while a process is started that ``Frozen.pid`` does not tell yet."""

    async def freeze(
        self,
        executor: LiveExecutor,
        checkpoint: str,
        *,
        move: bool,
        hold: int | None = None,
    ) -> Frozen:
        """Capture the process. Raises CheckpointRefused; then the executor runs on, untouched."""

    def can_read(self, frozen: Frozen) -> bool:
        """Whether this checkpoint can be read so now."""

    async def copy(self, frozen: Frozen, fds: Sequence[int]) -> int:
        """Start a process that has the frozen one's memory, beside the live one; return its pid.

        It is there to be read: nothing of the user's runs in it or reaches out of it. It ends when
        its link does, or is killed by the caller: it may hang. fds as for wake. Raises
        CheckpointRefused; then no process was started.
        """

    async def drop(self, frozen: Frozen) -> None:
        """End the frozen process and its twin. The second call does nothing."""

    def ended(self, pid: int) -> None:
        """A process inside has ended unasked."""

    async def prepare_twin(self, frozen: Frozen, live: int) -> None:
        """Use idle time so that waking it will be fast. Raises OSError; then it is as it was.

        live: the executor's pid; what it writes in a cell the woken one is likely to write too. An
        engine that has no use for it does nothing; likewise the next two.
        """

    async def unshare(self, frozen: Frozen, budget: int) -> int:
        """Use idle time, and budget bytes at most, for the next cell's sake; return bytes."""

    async def ping(self, frozen: Frozen) -> None:
        """End idle work that is under way. Never raises."""


class DurableEngine(Protocol):
    """One way to write a frozen process to the disk and to put it back as a frozen process."""

    name: str  # written in each checkpoint: never rename
    writers: set[int]
    """Processes, as seen inside, that write now; a restore leaves them alone."""

    async def why_not(self) -> str:
        """Why it cannot be used here, in words; "" where it can. Never raises."""

    async def write(
        self,
        frozen: Frozen,
        sandbox: Sandbox,
        *,
        base: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> Written:
        """Write an image of a frozen process; it can be woken meanwhile.

        base: ref of an image of the same session, for engines that can store what changed alone.
        details: plain JSON that is kept with it. Raises CheckpointRefused; then nothing was stored.
        """

    async def load(self, ref: str, sandbox: Sandbox, *, checkpoint: str) -> Frozen:
        """Put an image back in a sandbox. Raises RestoreFailed; then there is no process."""
