"""The executor's kernel: ipykernel's own, with the transport replaced by the link."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import zmq
from ipykernel import zmqshell
from ipykernel.ipkernel import IPythonKernel
from ipykernel.jsonutil import json_clean
from ipykernel.utils import _async_in_context
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.error import StdinNotImplementedError
from tornado import ioloop
from traitlets import Any as AnyTrait
from traitlets import Type, Unicode, observe

from kernel_runtime.executor import broken_shell, forks, no_debugger, trials
from kernel_runtime.executor.hints import hint
from kernel_runtime.executor.history import HistoryManager
from kernel_runtime.executor.link import Link
from kernel_runtime.executor.signals import LeaveCell
from kernel_runtime.executor.timetravel import TimeTravel
from kernel_runtime.frames import Channel, Frame, Kind

PROTOCOL = 1
"""Version of the time-travel protocol (docs/protocol.md) that kernel_info announces."""


_run_command = zmqshell.system  # type: ignore[attr-defined]


def _system(command: str) -> Any:
    """``!command``: IPython forks by means that no audit event tells of."""
    sys.audit("os.system", command)
    return _run_command(command)


zmqshell.system = _system  # type: ignore[attr-defined, assignment]
forks.install()
no_debugger.note()


class ExecutorShell(ZMQInteractiveShell):
    """ipykernel's shell; LeaveCell ends a cell without a traceback."""

    def init_history(self) -> None:
        """Create the manager whose database is the supervisor's to write."""
        self.history_manager = HistoryManager(shell=self, parent=self, link=self.kernel.link)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's own code: only now can an interrupt be raised and not be lost."""
        self.kernel.code_begins()
        return await super().run_ast_nodes(*args, **kwargs)

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an error; an impatient second interrupt does not cut it short."""
        if isinstance(sys.exc_info()[1], LeaveCell):
            self._last_traceback = []
            return
        main = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            error = sys.exc_info()[1]
            super().showtraceback(*args, **kwargs)
            if text := hint(error):
                sys.stderr.write(text)
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)

    def ask_exit(self) -> None:
        """``exit`` in a cell: the supervisor ends this process once the cell has its reply."""
        assert self.payload_manager is not None
        self.payload_manager.write_payload(
            {"source": "ask_exit", "keepkernel": self.keepkernel_on_exit}
        )
        if not self.keepkernel_on_exit:
            self.kernel.link.report(report="exit_asked")

    @observe("exit_now")
    def _update_exit_now(self, change: Any) -> None:
        """``kernel.do_shutdown(True)`` in a cell is ``exit``, too; ipykernel stops its loop."""
        if change["new"]:
            self.exit_now = False  # it may be asked for once more, after the exit was taken back
            self.kernel.link.report(report="exit_asked")

    def _format_exception_for_storage(self, exception: BaseException, *args: Any) -> Any:
        """IPython 9 stores tracebacks with outputs; formatting one takes up to 100 ms."""
        if isinstance(exception, LeaveCell):
            return {"ename": type(exception).__name__, "evalue": "", "traceback": []}
        return super()._format_exception_for_storage(exception, *args)  # type: ignore[no-untyped-call]


class ExecutorKernel(IPythonKernel):
    """IPythonKernel over a link instead of ZMQ sockets.

    Requests come one at a time (the supervisor keeps the queue and aborts it after an error), but
    comm messages may come while an asynchronous cell runs. Interrupts, the heartbeat, shutdown and
    usage are the supervisor's.
    """

    shell_class = Type(ExecutorShell)
    shell_stream = AnyTrait(None, allow_none=True)
    link = AnyTrait()
    wake_directory = Unicode()
    cells_context: contextvars.Context
    """In which cells run: numpy's print options and decimal's precision are in it."""
    hash_seed: str | None = None
    """What a process must be started with to have the same string hashes."""
    _execute_sleep = 0.0  # output cannot be overtaken by the reply here
    _supports_kernel_subshells = False
    # do_execute asks whether it runs in the thread that owns signals
    shell_channel_thread = SimpleNamespace(parent_thread=threading.main_thread())

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        assert isinstance(self.link, Link)
        self.timetravel = TimeTravel(self, self.link, self.wake_directory)
        self._info: dict[str, Any] = {}
        self.cells_context = contextvars.copy_context()
        self._dispatch = _async_in_context(partial(self.shell_main, None), self.cells_context)
        self._tasks: set[asyncio.Task[None]] = set()
        self._interrupted_early = False
        self._in_execute = False
        self.code_ran = False
        """Whether the shell has come to the code of the cell that runs, or ran last."""

    @property
    def kernel_info(self) -> dict[str, Any]:
        # made once: IPython draws the banner's tip from the user's own random stream
        if not self._info:
            self._info = {
                **super().kernel_info,
                "supported_features": [],
                "timetravel": {"version": PROTOCOL},
            }
        return self._info

    def start(self) -> None:
        """Begin to serve the link; called in the event loop's thread before the loop runs."""
        assert self.shell is not None
        self.shell.exit_now = False
        self.io_loop = ioloop.IOLoop.current()
        self._control_lock = asyncio.Lock()
        self.link.on_backlog = lambda: self.io_loop.add_callback(self._serve_link)
        self.watch_link()
        self.timetravel.say_hello()
        self._publish_status("starting", "shell")  # type: ignore[no-untyped-call]

    def watch_link(self) -> None:
        """Serve the link from now on; again when another socket has taken its number."""
        loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]
        loop.remove_reader(self.link.fd)
        loop.add_reader(self.link.fd, self._serve_link)

    def _serve_link(self) -> None:
        try:
            frames = self.link.readable()
        except EOFError:
            # the supervisor is gone; the sandbox's init ends this process if this does not
            self.io_loop.stop()
            return
        for frame in frames:
            self._serve(frame)

    def _serve(self, frame: Frame) -> None:
        if frame.kind == Kind.MESSAGE and frame.channel == Channel.SHELL:
            self.timetravel.request_came()
            message = [zmq.Frame(part) for part in frame.parts]
            task = asyncio.ensure_future(self._dispatch(message))
            self._tasks.add(task)
            task.add_done_callback(self._handled)
        elif frame.kind == Kind.COMMAND:
            self.timetravel.obey(frame.json())
        # a late answer to input() that nobody waits for is dropped

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # it flushes the user's streams once more before its idle; a closed one raises
            self.cells_context.run(self._publish_status, "idle", "shell")
        # nobody waits for this: the reply is out
        self.timetravel.request_done(is_last=not self._tasks)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """The supervisor holds the queue and aborts it."""

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        """Before a cell is said to be busy, be ready for its interrupt."""
        if channel == "shell" and _is_cell(parent):
            self._interrupted_early = self._in_execute = False
            signal.signal(signal.SIGINT, self._interrupt_early)
        super().set_parent(ident, parent, channel)  # type: ignore[no-untyped-call]

    def _interrupt_early(self, signum: int, frame: FrameType | None) -> None:
        """Note an interrupt before the cell's own code: raised there, it would cost the reply, or
        be swallowed by one of IPython's event callbacks. The second one is raised: one may hang."""
        if self._interrupted_early and self._in_execute and not forks.puts_off(signum):
            raise KeyboardInterrupt
        self._interrupted_early = True

    def code_begins(self) -> None:
        """The user's code comes next. Raises KeyboardInterrupt if that has been interrupted."""
        self.code_ran = True
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) == self._interrupt_early:
            signal.signal(signal.SIGINT, _interrupt)
            if self._interrupted_early:
                raise KeyboardInterrupt

    def pre_handler_hook(self) -> None:
        """Let an interrupt reach the handler that runs, as in ipykernel; a cell sees to its own."""
        # not ipykernel's own: for a moment it lets an interrupt end the loop
        cell = _is_cell(self.get_parent("shell"))  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGINT, self._interrupt_early if cell else _interrupt)

    def post_handler_hook(self) -> None:
        """Between two requests an interrupt is for nobody."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Answer a cell, whatever the cells before it have done to the shell."""
        self.code_ran = False
        try:
            await super().execute_request(stream, ident, parent)  # type: ignore[no-untyped-call]
        except Exception as error:
            # not into the log: its handler writes to a stream that may be what is broken
            content = broken_shell.answer(self, parent, error)
            assert self.session is not None
            self.session.send(
                stream,
                "execute_reply",
                json_clean(content),  # type: ignore[no-untyped-call]
                parent,
                ident=ident,
            )

    async def do_execute(
        self, code: str, silent: bool, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Run a cell, also one that may be taken back."""
        trial = None if silent else trials.read(code)
        execute = partial(self._execute, code, silent, *args, **kwargs)
        if not silent and (args[0] if args else kwargs.get("store_history", True)):
            self.timetravel.cell_begins()
        try:
            return await (execute() if trial is None else trial.run(self, execute))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self.timetravel.effects.end()
            if sys.version_info < (3, 11):  # there each request leaves its context to the next
                self.cells_context = contextvars.copy_context()

    async def _execute(self, code: str, silent: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run a cell. An interrupt after its end is ignored: it must not cost the reply."""
        self._in_execute = True
        try:
            reply: dict[str, Any] = await super().do_execute(  # type: ignore[no-untyped-call]
                code, silent, *args, **kwargs
            )
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            # before the user's code (a coroutine is cancelled), or between its end and the reply
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            name = KeyboardInterrupt.__name__
            content = {"ename": name, "evalue": str(error), "traceback": [name]}
            if not silent:
                self.send_response(self.iopub_socket, "error", content)  # type: ignore[no-untyped-call]
            reply = {
                "status": "error",
                **content,
                "execution_count": self.execution_count - 1,
                "user_expressions": {},
                "payload": [],
            }
        except LeaveCell:
            # not from the cell's own code, which IPython guards, but from what runs around it:
            # its events, input transformers, user_expressions
            reply = {
                "status": "ok",
                "execution_count": self.execution_count - 1,
                "user_expressions": {},
                "payload": [],
            }
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return reply

    @contextmanager
    def _cancel_on_sigint(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """As in ipykernel, and wake the loop: there other threads' sockets happen to do that."""
        with super()._cancel_on_sigint(future):
            cancel = signal.getsignal(signal.SIGINT)
            assert callable(cancel)
            loop: asyncio.AbstractEventLoop = self.io_loop.asyncio_loop  # type: ignore[attr-defined]

            def cancel_and_wake(*args: Any) -> None:
                cancel(*args)
                loop.call_soon_threadsafe(lambda: None)

            signal.signal(signal.SIGINT, cancel_and_wake)
            if self._interrupted_early:
                future.cancel()
            yield

    def _input_request(
        self, prompt: str, ident: Any, parent: dict[str, Any], password: bool = False
    ) -> str:
        if threading.current_thread() is not threading.main_thread():
            raise StdinNotImplementedError("input() is possible in the main thread only")
        session = self.session
        assert session is not None
        content = json_clean(  # type: ignore[no-untyped-call]
            {"prompt": prompt, "password": password}
        )
        session.send(self.stdin_socket, "input_request", content, parent, ident=ident)

        def is_reply(frame: Frame) -> bool:
            return frame.kind == Kind.MESSAGE and frame.channel == Channel.STDIN

        try:
            frame = self.link.wait(is_reply, self.timetravel.obey_at_once)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted by user") from None
        _, parts = session.feed_identities(list(frame.parts))
        reply = session.deserialize(parts)
        try:
            value: str = reply["content"]["value"]
        except KeyError:
            self.log.error("Bad input_reply: %s", parent)
            value = ""
        if value == "\x04":
            raise EOFError
        return value

    def open_comms(self, ids: Sequence[str]) -> None:
        """Announce again comms that live here but that the page has closed or never saw."""
        for comm_id in ids:
            comm = self.comm_manager.comms.get(comm_id)
            if comm is None:
                continue
            widgets = sys.modules.get("ipywidgets.widgets.widget")
            widget = getattr(widgets, "_instances", {}).get(comm_id) if widgets else None
            data: Any = {}
            buffers: Any = None
            metadata: dict[str, Any] = {}
            if widget is not None:
                state, paths, buffers = widgets._remove_buffers(widget.get_state())  # type: ignore[union-attr]
                data = {"state": state, "buffer_paths": paths}
                metadata = {"version": widgets.__protocol_version__}  # type: ignore[union-attr]
            comm.publish_msg(
                "comm_open",
                data=data,
                metadata=metadata,
                buffers=buffers,
                target_name=comm.target_name,
                target_module=comm.target_module,
            )


def _is_cell(message: Any) -> bool:
    return bool(message) and message["header"]["msg_type"] == "execute_request"


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if not forks.puts_off(signum):
        raise KeyboardInterrupt
