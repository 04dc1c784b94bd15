"""The executor's program: ipykernel's application without its sockets.

Profiles, startup files, extensions, ``exec_lines`` and all configuration of a stock kernel work
as there; the connection file, with its key, never reaches this process.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any, cast

from ipykernel.kernelapp import IPKernelApp
from tornado import ioloop
from traitlets import Integer, Type, Unicode

from kernel_runtime import linux
from kernel_runtime.executor.kernel import ExecutorKernel
from kernel_runtime.executor.link import Link, LinkSocket
from kernel_runtime.executor.stdio import LinkStream
from kernel_runtime.frames import Channel


class LinkHandler(logging.Handler):
    """The kernel's own log goes to the supervisor's, not into a cell's output."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            self._link.report(report="log", level=record.levelno, text=self.format(record))
        except Exception:
            self.handleError(record)


def _use_own_null() -> None:
    """Have standard input opened in here: CRIU cannot dump what was opened outside of the
    sandbox's mounts. DMTCP knows it as it is."""
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)


def _collect_from_now_on() -> None:
    """Look for garbage again, which boot.main has switched off; not first of all among what was
    made until now: it goes to the oldest generation, where it would come to in the end."""
    gc.freeze()
    gc.unfreeze()
    gc.enable()


class ExecutorApp(IPKernelApp):
    """An IPKernelApp whose channels are the link."""

    name = "ipython-kernel"  # whose configuration file, ipython_kernel_config.py, is read
    kernel_class = Type(ExecutorKernel)
    link_fd = Integer(-1, help="Number of the descriptor of the link.").tag(config=True)
    out_fd = Integer(-1, help="A descriptor on the pipe that 1 is at first.").tag(config=True)
    err_fd = Integer(-1, help="A descriptor on the pipe that 2 is at first.").tag(config=True)
    wake_directory = Unicode(
        "", help="Under DMTCP: where a restarted process is handed its new link."
    ).tag(config=True)
    hash_seed: str | None = None
    classes = [*IPKernelApp.classes, ExecutorKernel]  # noqa: RUF012 - declared so by traitlets

    def init_connection_file(self) -> None:
        """There is none here."""

    def write_connection_file(self, **kwargs: Any) -> None:
        """There is none here."""

    def init_poller(self) -> None:
        """The sandbox's init ends this process when the supervisor is gone."""

    def init_heartbeat(self) -> None:
        """The supervisor's."""

    def log_connection_info(self) -> None:
        """Nothing to connect to."""

    def init_sockets(self) -> None:
        """Take up the link."""
        if sys.platform.startswith("linux"):
            linux.clear_ambient()  # programs that the user starts get no capability of ours
        if not self.wake_directory:
            _use_own_null()
        self.link = Link(self.link_fd, (self.out_fd, self.err_fd))
        handler = LinkHandler(self.link)
        # traitlets filters here, not in the logger
        handler.setLevel(cast("int | str", self.log_level))
        self.log.handlers[:] = [handler]
        self.log.propagate = False
        # unsigned: the supervisor signs what it sends to clients with a key that is not known here
        self.session.key = b""
        self.session.check_pid = True
        self.shell_socket = LinkSocket(self.link, Channel.SHELL)
        self.stdin_socket = LinkSocket(self.link, Channel.STDIN)
        self.iopub_socket = LinkSocket(self.link, Channel.IOPUB)
        self.configure_tornado_logger()  # type: ignore[no-untyped-call]

    def init_io(self) -> None:
        """Redirect output and set the display hook."""
        from ipykernel.displayhook import ZMQDisplayHook

        sys.stdout = LinkStream(self.session, self.link, "stdout")
        sys.stderr = LinkStream(self.session, self.link, "stderr")
        self.displayhook = ZMQDisplayHook(  # type: ignore[no-untyped-call]
            self.session, self.iopub_socket
        )
        sys.displayhook = self.displayhook
        self.patch_io()  # type: ignore[no-untyped-call]

    def init_kernel(self) -> None:
        """Create the kernel."""
        self.kernel = self.kernel_class.instance(
            parent=self,
            session=self.session,
            link=self.link,
            shell_stream=self.shell_socket,
            stdin_socket=self.stdin_socket,
            iopub_socket=self.iopub_socket,
            log=self.log,
            profile_dir=self.profile_dir,
            user_ns=self.user_ns,
            wake_directory=self.wake_directory,
        )
        self.kernel.hash_seed = self.hash_seed
        self.displayhook.get_execution_count = lambda: self.kernel.execution_count

    def init_extensions(self) -> None:
        """Load the user's extensions, then the time-travel magics."""
        _collect_from_now_on()  # what follows may be the user's code
        super().init_extensions()  # type: ignore[no-untyped-call]
        try:
            assert self.shell is not None
            self.shell.extension_manager.load_extension("jupyter_timetravel")
        except Exception:  # checkpoints and the sidebar work without the magics
            self.log.exception("The time-travel magics could not be loaded.")

    def start(self) -> None:
        """Run the loop. An interrupt that strikes between two cells must not end it."""
        self.kernel.start()
        self.io_loop = ioloop.IOLoop.current()
        while True:
            try:
                self.io_loop.start()
                return
            except KeyboardInterrupt:
                self.log.debug("An interrupt came between two cells.")

    def close(self) -> None:
        """Nothing to close: the process ends."""
