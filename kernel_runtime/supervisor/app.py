"""The supervisor's program: what Jupyter starts and sees as the kernel."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import sys
from typing import Any

from jupyter_core.application import JupyterApp
from traitlets import TraitError, Unicode

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.store.runtime import runtime_directory
from kernel_runtime.supervisor.channels import Channels
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.supervisor.session import Session

_PARENT_S = 1.0
_SWITCH_S = 0.0002

SANDBOX_LOST = 4
"""Exit status when the sandbox was killed under the kernel."""

START_FAILED = 3
"""Exit status when the kernel could not be set up."""


class SupervisorApp(JupyterApp):
    """``python -m kernel_runtime -f CONNECTION_FILE [--python PATH] [--Supervisor.x=y] [-- …]``.

    Arguments after ``--`` are the executor's (those of ``ipykernel``).
    """

    name = "timetravel-kernel"
    description = "A Jupyter kernel that can go back."
    classes = [Supervisor]  # noqa: RUF012 - declared so by traitlets
    connection_file = Unicode(
        help="The file that says where clients find the kernel; it is written if it is not there."
    ).tag(config=True)
    python = Unicode(sys.executable, help="The interpreter that runs the cells.").tag(config=True)
    aliases = {  # noqa: RUF012
        "f": "SupervisorApp.connection_file",
        "python": "SupervisorApp.python",
        "log-level": "Application.log_level",
    }
    log_level = 30
    flags: dict[str, Any] = {  # noqa: RUF012
        "debug": ({"Application": {"log_level": 10}}, "Log at debug level.")
    }

    def initialize(self, argv: Any = None) -> None:
        """Read the command line and configuration files."""
        given = list(sys.argv[1:] if argv is None else argv)
        cut = given.index("--") if "--" in given else len(given)
        self.executor_arguments = given[cut + 1 :]
        super().initialize(given[:cut])
        if self.log_level <= logging.DEBUG:
            self.executor_arguments.insert(0, "--debug")
        if not self.connection_file:
            self.connection_file = os.path.join(self.runtime_dir, f"kernel-{os.getpid()}.json")

    def migrate_config(self) -> None:
        """Not a kernel's to do, and it fails where the home cannot be written."""

    def start(self) -> None:
        """Run until shut down. Exit status START_FAILED if the kernel cannot be set up."""
        # a thread that looks at files must not hold up each step of the loop for 5 ms
        sys.setswitchinterval(_SWITCH_S)
        try:
            settings = Supervisor(parent=self)
        except TraitError as error:
            self.log.critical(
                "The time-travel kernel cannot start, a setting is wrong: %s. Correct it in the "
                "kernelspec or in the configuration file; nothing was changed.",
                str(error).rstrip("."),
            )
            sys.exit(START_FAILED)
        try:
            asyncio.run(self._run(settings))
        except TimeTravelError as error:
            self.log.critical("The time-travel kernel cannot start: %s", error)
            sys.exit(START_FAILED)

    async def _run(self, settings: Supervisor) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        channels = Channels()
        runtime_dir = runtime_directory()
        session = Session(
            channels,
            settings,
            python=self.python,
            arguments=self.executor_arguments,
            runtime_dir=runtime_dir,
            connection_file=self.connection_file,
            log=self.log,
        )

        def serve() -> None:
            from kernel_runtime.supervisor.connection import Connection
            from kernel_runtime.supervisor.control import Control

            Connection(parent=self, connection_file=self.connection_file).open(channels)
            control = Control(channels, session, ended.set)
            channels.receive(
                {
                    "shell": session.router.on_shell,
                    "stdin": session.router.on_stdin,
                    "control": control.receive,
                }
            )

        session.serve = serve
        failed = []

        def fatal() -> None:
            failed.append(True)
            ended.set()

        session.on_fatal = fatal
        try:
            loop.add_signal_handler(signal.SIGINT, lambda: session.background(session.interrupt()))
            loop.add_signal_handler(signal.SIGTERM, ended.set)
            if not os.path.exists(self.connection_file):
                session.complete()  # it must be there to be hidden from cells
            await session.start()
            gc.freeze()
            gc.enable()
            if os.environ.get("JPY_PARENT_PID"):
                session.background(self._watch_parent(os.getppid(), ended))
            await ended.wait()
        finally:
            await session.shutdown()
            channels.close()
            shutil.rmtree(runtime_dir, ignore_errors=True)
        if failed:
            sys.exit(SANDBOX_LOST)

    @staticmethod
    async def _watch_parent(parent: int, ended: asyncio.Event) -> None:
        """End when the server that started this kernel is gone, as ipykernel does."""
        while os.getppid() == parent:
            await asyncio.sleep(_PARENT_S)
        ended.set()


def main() -> None:
    """Entry point of ``python -m kernel_runtime``."""
    if not sys.platform.startswith("linux"):
        print(
            "The time-travel kernel needs Linux: it freezes processes with calls that "
            f"{sys.platform} lacks. Run it on Linux, in WSL 2 or in a container.",
            file=sys.stderr,
        )
        sys.exit(START_FAILED)
    logging.captureWarnings(True)
    SupervisorApp.launch_instance()
