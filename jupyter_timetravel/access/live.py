"""A session whose kernel runs: the kernel is asked."""

from __future__ import annotations

from typing import Any

from jupyter_timetravel.access import running
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.client import Client
from jupyter_timetravel.commands import Command
from jupyter_timetravel.records import Result


class LiveAccess:
    """Over the kernel's control channel; to be closed. Also raises RequestTimeout, KernelGone."""

    running = True

    def __init__(self, kernel: RunningKernel, timeout: float) -> None:
        self.kernel = kernel
        self._client = Client.from_connection_file(
            kernel.connection_file, timeout=timeout, is_there=lambda: running.is_there(kernel)
        )

    def close(self) -> None:
        """Let go of the connection; the kernel runs on."""
        self._client.close()

    @property
    def title(self) -> str:
        return self.kernel.title

    def about(self) -> Result:
        return {
            "timeline": self.kernel.timeline,
            "notebook": self.kernel.notebook,
            "running": True,
        }

    def ask(self, command: Command[Any]) -> Result:
        return self._client.ask(command)
