"""A session whose kernel runs: the kernel is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_timetravel import commands
from jupyter_timetravel.access import running
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.access.session import Result
from jupyter_timetravel.client import Client
from jupyter_timetravel.commands import Command, Only
from kernel_runtime.timeline.names import Spec


class LiveAccess:
    """Over the kernel's control channel; to be closed. Also raises RequestTimeout, KernelGone."""

    running = True

    def __init__(self, kernel: RunningKernel, timeout: float) -> None:
        self.kernel = kernel
        self.client = Client.from_connection_file(
            kernel.connection_file, timeout=timeout, is_there=lambda: running.is_there(kernel)
        )

    def close(self) -> None:
        """Let go of the connection; the kernel runs on."""
        self.client.close()

    @property
    def title(self) -> str:
        return self.kernel.title

    def status(self) -> Result:
        return self._ask(commands.status())

    def list(self, include_auto: bool = True, history: Spec | None = None) -> Result:
        found = self._ask(commands.list_checkpoints(include_auto, history))
        return {
            "timeline": self.kernel.timeline,
            "notebook": self.kernel.notebook,
            "running": True,
            **found,
        }

    def show(self, checkpoint: Spec) -> Result:
        return self._ask(commands.get(checkpoint))

    def diff(self, a: Spec, b: Spec | None = None) -> Result:
        return self._ask(commands.diff(a, b))

    def checkpoint(self, comment: str = "", label: str | None = None, pin: bool = False) -> Result:
        return self._ask(commands.checkpoint(comment, label, pin))

    def restore(
        self,
        checkpoint: Spec = -1,
        only: Only | None = None,
        dry_run: bool = False,
        undo: bool = False,
        force: bool = False,
        compensate: bool = False,
        partial: bool = False,
        reseed: bool = False,
    ) -> Result:
        return self._ask(
            commands.restore(checkpoint, only, dry_run, undo, force, compensate, partial, reseed)
        )

    def bring(self, checkpoint: Spec, names: Sequence[str]) -> Result:
        return self._ask(commands.bring(checkpoint, names))

    def replay(
        self,
        checkpoint: Spec,
        skip: Sequence[Spec] = (),
        until: Spec | None = None,
        stop_on_difference: bool = False,
        dry_run: bool = False,
    ) -> Result:
        return self._ask(commands.replay(checkpoint, skip, until, stop_on_difference, dry_run))

    def verify(self, checkpoint: Spec | None = None) -> Result:
        return self._ask(commands.verify(checkpoint))

    def delete(self, checkpoint: Spec) -> Result:
        return self._ask(commands.delete(checkpoint))

    def _ask(self, command: Command[Any]) -> Result:
        return dict(self.client.ask(command))
