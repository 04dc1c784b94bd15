"""Kernels that agents use: found where they run, or started for a notebook and ended with us."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import NoSuchKernel as NoSuchKernelspec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir

from jupyter_timetravel import commands
from jupyter_timetravel.access import choosing, running
from jupyter_timetravel.access.live import LiveAccess
from jupyter_timetravel.access.running import RunningKernel
from jupyter_timetravel.access.session import Access
from jupyter_timetravel.agent_server.cells import Cell
from jupyter_timetravel.agent_server.errors import KernelBusy, KernelNotStarted, UnknownCell
from jupyter_timetravel.client import DEFAULT_TIMEOUT_S
from jupyter_timetravel.commands import Command
from jupyter_timetravel.offline import stored
from jupyter_timetravel.offline.stored import NotRunning
from jupyter_timetravel.records import Result
from jupyter_timetravel.wire import RequestTimeout
from kernel_runtime.errors import BadRequest
from kernel_runtime.store.errors import StoreError
from kernel_runtime.timeline.model import first_line
from kernel_runtime.timeline.text import one_line

T = TypeVar("T")

CELLS_KEPT: Final = 200
"""Cells of each kernel whose output can still be asked for."""

_START_S: Final = 120.0
_JOIN_S: Final = 0.25
_JOIN_ATTEMPTS: Final = 40
_LOOK_S: Final = 0.1
_ALIVE_S: Final = 2.0
"""Seconds between two looks whether the kernel of a cell that runs is there."""
_AT_END_S: Final = 30.0
"""Seconds that a kernel of ours may write at its end: nobody else is there to kill it sooner."""
_SILENT_S: Final = 3.0
"""Seconds after which a kernel that has the notebook must say that it is ending."""
_ENDING_S: Final = _AT_END_S + 15.0

_EXECUTE: Final = {
    "silent": False,
    "store_history": True,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": True,
}
_EMPTY_NOTEBOOK: Final = """\
{
 "cells": [],
 "metadata": {},
 "nbformat": 4,
 "nbformat_minor": 5
}
"""


class Kernel:
    """One kernel, whoever started it."""

    def __init__(self, found: RunningKernel, manager: AsyncKernelManager | None) -> None:
        self.found = found
        self.manager = manager
        """Of a kernel that we started, else None."""
        self.trying = False
        """Whether alternatives are being tried: the session jumps to and fro."""
        self._turn = anyio.Lock()
        self._control = anyio.Lock()
        self._writing = anyio.Lock()
        self._cells: dict[str, Cell] = {}
        self._client = AsyncKernelClient(connection_file=str(found.connection_file))
        self._client.load_connection_file()
        self._readers: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Open the channels, and be sure that output is heard. Raises RequestTimeout."""
        self._client.start_channels(hb=False, stdin=False)
        await self._join()
        self._readers = [asyncio.create_task(work()) for work in (self._listen, self._answers)]

    def close(self) -> None:
        """Let go of the channels; the kernel runs on."""
        for reader in self._readers:
            reader.cancel()
        self._client.stop_channels()

    @asynccontextmanager
    async def turn(self, deadline: float) -> AsyncIterator[None]:
        """Calls that run something come one after another, in order, each on an idle kernel.

        deadline: of time.monotonic(). Raises KernelBusy if it passes before: nothing was sent.
        """
        try:
            self._turn.acquire_nowait()  # whoever needs not wait is not too late
        except anyio.WouldBlock:
            with anyio.move_on_after(max(0.0, deadline - time.monotonic())) as limit:
                await self._turn.acquire()
            if limit.cancelled_caught:
                raise self.busy() from None
        try:
            while (await self.ask(commands.status()))["busy"]:
                if time.monotonic() >= deadline:
                    raise self.busy()
                await anyio.sleep(_LOOK_S)
            yield
        finally:
            self._turn.release()

    async def ask(self, command: Command[Any], timeout: float = DEFAULT_TIMEOUT_S) -> Result:
        """Carry out a command of the protocol; it goes on if whoever asks is cancelled."""
        return await self.look(lambda access: access.ask(command), timeout)

    async def look(self, work: Callable[[Access], T], timeout: float = DEFAULT_TIMEOUT_S) -> T:
        """Likewise, several on one connection."""

        def connected() -> T:
            with closing(LiveAccess(self.found, timeout)) as access:
                return work(access)

        return await anyio.to_thread.run_sync(connected, abandon_on_cancel=True)

    def send(self, code: str) -> Cell:
        """Send a cell; the caller has the turn."""
        request = self._client.session.msg("execute_request", {**_EXECUTE, "code": code})
        cell = Cell(str(request["header"]["msg_id"]), code)
        request["metadata"]["cellId"] = cell.cell_id
        self._cells[cell.id] = cell
        self._client.shell_channel.send(request)
        for id in list(self._cells)[:-CELLS_KEPT]:
            if self._cells[id].ended:
                del self._cells[id]
        return cell

    async def wait(self, cell: Cell, seconds: float) -> bool:
        """Wait for the end of a cell; whether it came. Raises NotRunning if the kernel ends."""
        deadline = time.monotonic() + seconds
        while not await cell.wait(min(_ALIVE_S, deadline - time.monotonic())):
            if not await anyio.to_thread.run_sync(running.is_there, self.found):
                raise NotRunning(
                    f"The kernel of {self.found.title} ended while the cell ran. What the cell has "
                    "written until then is there; list_checkpoints shows where one can go back "
                    "to, and run_cell starts another kernel."
                )
            if time.monotonic() >= deadline:
                return False
        return True

    async def evaluate(self, expression: str, timeout: float) -> str:
        """The value of an expression, as text, outside of any cell. Raises BadRequest."""
        id = self._client.execute(
            "", silent=True, user_expressions={"value": expression}, allow_stdin=False
        )
        cell = self._cells[str(id)] = Cell(str(id), "")
        try:
            if not await self.wait(cell, timeout):
                await self.interrupt()
                raise KernelBusy(
                    f"{one_line(expression, 60)} was not worked out within {timeout:g} s, and was "
                    "interrupted. Nothing else was changed."
                )
        finally:
            del self._cells[cell.id]
        value = (cell.reply or {}).get("user_expressions", {}).get("value", {})
        if value.get("status") != "ok":
            raise BadRequest(
                f"{one_line(expression, 60)} cannot be worked out: {value.get('ename')}: "
                f"{one_line(str(value.get('evalue')), 200)}"
            )
        return str(value["data"]["text/plain"])

    def cell(self, id: str) -> Cell:
        """One that was sent before. Raises UnknownCell."""
        if id not in self._cells:
            raise UnknownCell(
                f"This server has run no cell {id!r} in {self.found.title}, or long ago. Nothing "
                "was done; run_cell names the cell in its answer."
            )
        return self._cells[id]

    async def write(self, cell: Cell) -> None:
        """Append a cell that has ended to the notebook's file, once; ``cell.file`` says whether."""
        from jupyter_timetravel.agent_server import notebook_file  # seldom needed

        if cell.file is not None or not cell.ended:
            return
        try:
            if self.manager is None:
                raise notebook_file.NotWritten(
                    "its kernel was started by another program, which may have it open; a page "
                    "can insert the cell from its timeline"
                )
            path = Path(str(self.found.notebook))
            async with self._writing:
                await anyio.to_thread.run_sync(notebook_file.append, path, cell)
            cell.file = f"appended to {path}"
        except notebook_file.NotWritten as error:
            cell.file = f"not written into {self.found.title}: {error}"

    async def interrupt(self) -> None:
        """As the button does."""
        async with self._control:  # the answer is for one reader
            await self._asked("interrupt_request")

    def busy(self) -> KernelBusy:
        """The error that says what it is busy with."""
        cells = [cell for cell in self._cells.values() if not cell.ended]
        what = "another client's cell, or a restore, is under way"
        if self.trying:
            what = "alternatives are being tried"
        elif cells:
            code = one_line(first_line(cells[0].code), 60)
            what = f"cell {cells[0].id} still runs ({code})"
        return KernelBusy(
            f"The kernel of {self.found.title} is busy: {what}. Nothing was sent to it; "
            "wait_for_cell waits for the cell, interrupt stops it, a longer timeout_s waits longer."
        )

    # -- inside -----------------------------------------------------------------------------

    async def _asked(self, msg_type: str) -> None:
        request = self._client.session.msg(msg_type, {})
        self._client.control_channel.send(request)
        while True:
            try:
                reply = await self._client.control_channel.get_msg(timeout=DEFAULT_TIMEOUT_S)
            except Exception as error:  # queue.Empty, or a message that is not signed right
                raise RequestTimeout(msg_type, DEFAULT_TIMEOUT_S) from error
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return

    async def _join(self) -> None:
        """Wait until IOPub is known to be heard: what was sent before is lost."""
        asked = set()  # on a machine with much to do it is an earlier one that is answered
        for _ in range(_JOIN_ATTEMPTS):
            request = self._client.session.msg("kernel_info_request", {})
            self._client.control_channel.send(request)
            asked.add(request["header"]["msg_id"])
            with suppress(Exception):  # queue.Empty: once more
                while True:
                    message = await self._client.iopub_channel.get_msg(timeout=_JOIN_S)
                    if message["parent_header"].get("msg_id") in asked:
                        return
        raise RequestTimeout("kernel_info", _JOIN_S * _JOIN_ATTEMPTS)

    async def _listen(self) -> None:
        while True:
            message = await self._client.iopub_channel.get_msg(timeout=None)
            cell = self._cells.get(str(message["parent_header"].get("msg_id")))
            if cell is not None:
                cell.on_output(message)

    async def _answers(self) -> None:
        while True:
            message = await self._client.shell_channel.get_msg(timeout=None)
            cell = self._cells.get(str(message["parent_header"].get("msg_id")))
            if cell is not None and message["header"]["msg_type"] == "execute_reply":
                cell.on_reply(message["content"])


class Kernels:
    """All that this server talks to. Nothing of it is a "current" one."""

    def __init__(self, kernel_name: str) -> None:
        self._kernel_name = kernel_name
        self._known: dict[Path, Kernel] = {}
        self._finding: dict[str, anyio.Lock] = {}

    async def of(self, notebook: str, *, start: bool = False, create: bool = False) -> Kernel:
        """The kernel that a call names; start: start one for a notebook that has none.

        Raises NoSuchKernel, NotRunning, KernelNotStarted.
        """
        if notebook in ("", choosing.NEWEST):
            raise BadRequest("Name the notebook, or the kernel, in every call. Nothing was done.")
        key = os.path.realpath(notebook)
        async with self._finding.setdefault(key, anyio.Lock()):  # or two calls would start two
            found = await anyio.to_thread.run_sync(choosing.kernel_of, notebook)
            if found is not None:
                return await self._connected(found, None)
            if not start:
                raise NotRunning(
                    f"No kernel runs for {one_line(notebook, 200)}. Nothing was done; start_kernel "
                    "or run_cell starts one, kernels lists those that run."
                )
            return await self._start(notebook, create)

    async def shut_down(self, kernel: Kernel) -> None:
        """End a kernel that we started. Raises KernelNotStarted."""
        if kernel.manager is None:
            raise KernelNotStarted(
                f"The kernel of {kernel.found.title} was started by another program, so it is not "
                "ended here. Nothing was changed; shut it down where it was started."
            )
        self._known.pop(kernel.found.connection_file, None)
        kernel.close()
        await kernel.manager.shutdown_kernel()

    async def close(self) -> None:
        """End the kernels that we started; what they have not written yet they write first."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for kernel in list(self._known.values()):
                    if kernel.manager is not None:
                        group.start_soon(self.shut_down, kernel)
                    else:
                        kernel.close()

    async def _connected(self, found: RunningKernel, manager: AsyncKernelManager | None) -> Kernel:
        known = self._known.get(found.connection_file)
        if known is not None:
            known.found = found
            return known
        kernel = Kernel(found, manager)
        try:
            await kernel.connect()
        except BaseException:
            kernel.close()
            raise
        first = self._known.setdefault(found.connection_file, kernel)
        if first is not kernel:
            kernel.close()  # it was found by another name meanwhile
        return first

    async def _start(self, notebook: str, create: bool) -> Kernel:
        path = Path(os.path.realpath(notebook))
        _check_notebook(notebook, path, create)
        await _wait_until_free(path)
        runtime = Path(jupyter_runtime_dir())
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        manager = AsyncKernelManager(kernel_name=self._kernel_name)
        manager.shutdown_wait_time = 2 * _AT_END_S  # then it is killed
        manager.connection_file = str(runtime / f"kernel-{uuid.uuid4()}.json")
        try:
            await manager.start_kernel(
                cwd=str(path.parent),
                env={**os.environ, "JPY_SESSION_NAME": str(path)},
                stdout=subprocess.DEVNULL,  # ours carries the protocol
                extra_arguments=[f"--Supervisor.durability_at_end={_AT_END_S}"],
            )
            client = manager.client()
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=_START_S)
            finally:
                client.stop_channels()
            found = await anyio.to_thread.run_sync(running.at, manager.connection_file)
            return await self._connected(found, manager)
        except NoSuchKernelspec as error:
            raise KernelNotStarted(
                f"There is no kernel {self._kernel_name!r}. Nothing was started; `jupyter "
                "timetravel install --user` installs it, --kernel NAME names another one."
            ) from error
        except (RuntimeError, OSError) as error:
            await manager.shutdown_kernel(now=True)
            raise KernelNotStarted(
                f"The kernel {self._kernel_name!r} did not start for {one_line(notebook, 200)}: "
                f"{error}. `jupyter timetravel doctor` says what is missing."
            ) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await manager.shutdown_kernel(now=True)
            raise


async def _wait_until_free(path: Path) -> None:
    """A kernel that is ending has its notebook for a moment still. Raises KernelNotStarted."""
    started = time.monotonic()

    def is_taken() -> bool:
        with suppress(StoreError):  # the kernel itself will say what is wrong with the store
            return stored.in_use(str(path))
        return False

    while await anyio.to_thread.run_sync(is_taken):
        waited = time.monotonic() - started
        if waited > _SILENT_S:
            ending = await anyio.to_thread.run_sync(running.is_ending, str(path))
            if waited > _ENDING_S or not ending:
                raise KernelNotStarted(
                    f"A kernel runs on {one_line(str(path), 200)} that could not be asked: it did "
                    "not answer in time, or its connection file is elsewhere. Nothing was started; "
                    "try again, name its connection file, or shut it down."
                )
        await anyio.sleep(_LOOK_S)


def _check_notebook(given: str, path: Path, create: bool) -> None:
    """Raise KernelNotStarted unless there is a notebook, or make an empty one."""
    if path.suffix != ".ipynb":
        raise KernelNotStarted(
            f"{one_line(given, 200)} is neither the path of a notebook (.ipynb) nor a running "
            "kernel. Nothing was started; kernels lists those that run."
        )
    if path.is_file():
        return
    if not create:
        raise KernelNotStarted(
            f"There is no notebook {one_line(given, 200)}. Nothing was started; start_kernel with "
            "create=true makes an empty one."
        )
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(_EMPTY_NOTEBOOK)
    except OSError as error:
        raise KernelNotStarted(
            f"The notebook {one_line(given, 200)} could not be made: {error.strerror}. Nothing was "
            "started."
        ) from error
