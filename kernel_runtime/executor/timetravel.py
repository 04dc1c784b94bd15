"""The executor's part in time travel: freeze on command, greet, ask on behalf of magics."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from kernel_runtime import errors
from kernel_runtime.executor import (
    afterwake,
    copies,
    lost_children,
    native,
    not_held,
    parking,
    reseeding,
    stand_in,
    variables,
    versions,
)
from kernel_runtime.executor.compensations import Compensations
from kernel_runtime.executor.effects import Effects
from kernel_runtime.executor.environ import EnvironmentVariables
from kernel_runtime.executor.huge_pages import HugePages
from kernel_runtime.executor.link import Link
from kernel_runtime.executor.signals import LeaveCell, interrupts_put_off
from kernel_runtime.frames import Frame, Kind

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel

_FAULTS_LEARNT_FROM = 200

_TOUCHED_IN_A_ROW = 8
"""Freezes, of which the last one leaves pages as they are."""

_HURRY_S = 0.01
"""Seconds: requests that come this soon after a freeze leave no time to make pages ready."""

_HOLD_MS = 5000
"""How long it stays stopped at most while the environment is captured, …"""

_READY_MS = 1000
"""… and before it leaves, while a restore is planned."""

_AHEAD_S = 0.02
"""Seconds: what was looked up that long ago may have been changed by a thread or a task since."""


class TimeTravel:
    """Answers the supervisor's commands and sends it the magics' requests."""

    def __init__(self, kernel: ExecutorKernel, link: Link, wake_directory: str = "") -> None:
        """wake_directory: where a process that DMTCP restarts asks for a link; then it is DMTCP
        that makes checkpoints, and our own library, whose calls DMTCP does not see, is left out."""
        self._kernel = kernel
        self._link = link
        self._wake_directory = wake_directory
        self._library: Any = None
        self._no_library = ""
        if not wake_directory:
            self._library, self._no_library = native.load()
        self._huge_pages: HugePages | None = None
        if self._library is not None:
            self._huge_pages = HugePages(link.fd, lambda work: kernel.io_loop.add_callback(work))
        self._not_held = not_held.NotHeld() if wake_directory else None
        self._environ = EnvironmentVariables()
        self._requests = 0
        self._waiting = 0
        self._frozen_at = 0.0
        self._hurried = False
        self._faults = 0
        self._fault_s = 0.0
        self._since_untouched = 0
        self._touch_follows = False
        self._freeze_follows = False
        self._ahead: dict[str, Any] = {}
        self._ahead_until = 0.0
        self.directory: str | None = None
        """The working one at the last freeze."""
        self.effects = Effects(link)
        self.compensations = Compensations(self.effects)
        self.effects.install()
        afterwake.prepare()

    def say_hello(self, **fields: Any) -> None:
        """Tell the supervisor that this process serves the link, and what lives in it."""
        self._link.report(
            report="hello",
            pid=os.getpid(),
            kernel_info=self._kernel.kernel_info,
            execution_count=self._kernel.execution_count,
            comms={i: c.target_name for i, c in self._kernel.comm_manager.comms.items()},
            freezer=self._no_library,
            **fields,
        )

    def request_came(self) -> None:
        """A client's request was read. Back to back, there is no time between cells to be used."""
        self._hurried = time.monotonic() - self._frozen_at < _HURRY_S
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._ahead_until = 0.0
        if self._huge_pages is not None:
            self._huge_pages.stop()

    def request_done(self, is_last: bool) -> None:
        """The reply is out. What a freeze will ask for is looked up while the supervisor reads it,
        if one came after the request before.

        is_last: whether no other request has come meanwhile, which would change what is looked up:
        the next cell, or a comm message within one that awaits something.
        """
        self.effects.flush()
        if not is_last:
            return
        if self._freeze_follows:
            self._look_ahead()
        self._freeze_follows = False

    def _look_ahead(self) -> None:
        self._ahead = self._summary()
        self._ahead_until = time.monotonic() + _AHEAD_S

    def cell_begins(self) -> None:
        """What it does outside of the session is noted from now on."""
        parent = self._kernel.get_parent("shell")  # type: ignore[no-untyped-call]
        self.effects.begin(parent["header"]["msg_id"])

    # What the supervisor commands

    def obey_at_once(self, frame: Frame) -> bool:
        """Obey a command that comes while a cell waits; say whether the frame was one."""
        if frame.kind != Kind.COMMAND:
            return False
        self.obey(frame.json())
        return True

    def obey(self, command: dict[str, Any]) -> None:
        """Carry out one command. Raises LeaveCell in a process that was woken within a cell.

        Whoever asked must not wait for ever: what fails here by an error that nobody thought of
        (user code may have replaced what is called, such as ``os.getcwd``) is answered, too.
        """
        try:
            self._obey(command)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._link.report(report="failed", id=command.get("id"), error=text)

    def _obey(self, command: dict[str, Any]) -> None:
        name = command["command"]
        if name == "freeze":
            self._freeze(command)
        elif name == "park":
            self._park(command)
        elif name == "park_aside":
            self._park_aside(command)
        elif name == "open_comms":
            self._kernel.open_comms(command["ids"])
        elif name == "variables":
            self._link.report(report="variables", id=command["id"], variables=self._summary())
        elif name == "load_namespace":
            copies.load_into(self._kernel, self._link.take_descriptor())
            self._link.report(report="loaded", id=command["id"])
        elif name == "versions":
            self._link.report(
                report="versions", id=command["id"], **versions.loaded(command["modules"])
            )
        elif name == "reseed":
            shell = self._kernel.shell
            names = shell.user_ns if shell is not None else {}
            self._link.report(report="reseeded", id=command["id"], done=reseeding.reseed(names))
        elif name == "compensations":
            known = self.compensations.known(command["ids"])
            self._link.report(report="compensations", id=command["id"], known=known)
        elif name == "effects":
            self.effects.obey(command["held"], command["not_held"], command["otherwise"])
        elif name == "regain_huge_pages":
            if self._huge_pages is not None:
                self._huge_pages.begin()
        elif name == "shutdown":
            self._kernel.io_loop.stop()

    def _summary(self) -> dict[str, Any]:
        shell = self._kernel.shell
        assert shell is not None
        found: dict[str, Any] = variables.summarize(shell.user_ns, shell.user_ns_hidden)
        return {**found, **self._environ.summary()}

    def _freeze(self, command: dict[str, Any]) -> None:
        listener = self._link.take_descriptor()
        hold = self._link.take_descriptor() if command["held"] else -1
        base = command["base"]
        difference = -1 if base is None else self._link.take_descriptor()
        move = bool(command["move"])
        woken = 0
        interval = sys.getswitchinterval()
        try:
            self.effects.flush()  # else the frozen process would tell of them once more
            is_known = time.monotonic() < self._ahead_until
            summary = self._ahead if is_known else self._summary()
            self._ahead_until, self._freeze_follows = 0.0, not move
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
            # pages that the cell wrote first since the checkpoint before, at what one costs here
            cow_tax_ms = faults * self._fault_s * 1e3
            children = lost_children.children()
            generator = random.getstate()
            self._note_directory()
            # not the monotonic clock, which may be another one in the sandbox
            if time.clock_gettime(time.CLOCK_BOOTTIME) > command["until"]:
                raise errors.CheckpointRefused(
                    "The process was busy for too long to be frozen. It runs on."
                )
            if self._library is None:
                raise errors.CheckpointRefused(self._no_library)
            hurried = self._hurried or command.get("hurry")
            at_leisure = not (move or self._waiting or hurried)
            # what was noted and not touched yet the cell before has written, not one since
            if at_leisure and not self._touch_follows:
                self._library.note_pages()
            if move:
                # a successful move ends this process: say now what cannot be said afterwards
                self._link.report(report="moving", id=command["id"], variables=summary)
            with self._link.held():
                sys.setswitchinterval(afterwake.UNDISTURBED_S)
                woken, values, notes = self._library.freeze(
                    flags=native.MOVE if move else 0,
                    listen_fd=listener,
                    link_fd=self._link.fd,
                    # ours, not 1 and 2: the user may have put files there
                    out_fd=self._link.output[0],
                    err_fd=self._link.output[1],
                    supervisor_pid=command["supervisor_pid"],
                    stop_timeout_ms=command["stop_timeout_ms"],
                    aside_limit=command["aside_limit"],
                    hot_min=command["hot_min"],
                    hold_fd=hold,
                    hold_timeout_ms=_READY_MS if move else _HOLD_MS,
                    difference_fd=difference,
                    base_pid=base or 0,
                    difference_at=command["difference_at"],
                    difference_most=command["difference_most"],
                    python_threads=native.running_python(),
                )
                if woken and values.woken_copy:
                    sys.setswitchinterval(interval)
                    self._serve_copy(generator, self._link.fd, native.open_files(notes))
                if woken:
                    self._link.reset()
        except errors.CheckpointRefused as error:
            self._link.report(report="frozen", id=command["id"], error=str(error))
            return
        finally:
            if not woken:  # a woken process was not given them
                sys.setswitchinterval(interval)
                os.close(listener)
                for fd in (hold, difference):
                    if fd >= 0:
                        os.close(fd)
        if woken:
            self._greet(woken, bool(values.woken_ids_kept), children, notes, interval)
        else:
            self._link.report(
                report="frozen",
                id=command["id"],
                variables=summary,
                pid=values.frozen_pid,
                threads=values.threads,
                pause_ns=values.pause_ns,
                stop_ns=values.stop_ns,
                describe_ns=values.describe_ns,
                aside_ns=values.aside_ns,
                clone_ns=values.clone_ns,
                hold_ns=values.hold_ns,
                aside_bytes=values.aside_bytes,
                hot_bytes=values.hot_bytes,
                rewritten_bytes=values.rewritten_bytes,
                difference_bytes=values.difference_bytes,
                difference_why=values.difference_why,
                notes=notes,
                cow_tax_ms=cow_tax_ms,
            )
            self._frozen_at = time.monotonic()
            # where differences will be from this one, each of them would have what was touched
            touches = at_leisure and values.frozen_pid and difference < 0
            if touches and not self._touch_follows and self._next_is_touched():
                self._touch_follows = True
                # after whatever else is ready to run: nobody waits for this
                self._kernel.io_loop.add_callback(self._touch_pages)

    def _park(self, command: dict[str, Any]) -> None:
        """Wait while DMTCP makes a checkpoint; in a process that came back, take up a new link."""
        self.effects.flush()  # else a process that comes back would tell of them once more
        self._note_directory()
        generator = random.getstate()
        put_back = not_held.put_back_later()
        woken = parking.park(
            self._link,
            self._wake_directory,
            lambda control: stand_in.begin(control, partial(self._serve_copy, generator)),
            id=command["id"],
            variables=self._summary(),
            notes=self._not_held.notes() if self._not_held else [],
            endless=self._not_held.endless() if self._not_held else [],
        )
        put_back()
        if woken:
            self._kernel.watch_link()
            if self.directory is not None:
                with contextlib.suppress(OSError):
                    os.chdir(self.directory)  # DMTCP knows those below the first one only
            self._greet(woken, True, [], [], sys.getswitchinterval())

    def _park_aside(self, command: dict[str, Any]) -> None:
        """Wait while CRIU dumps all processes; in one that it restored, serve the new link."""
        self.effects.flush()  # else a process that comes back would tell of them once more
        self._note_directory()
        woken = parking.park_aside(self._link, self._link.take_descriptor(), id=command["id"])
        if woken:
            self._kernel.watch_link()
            self._greet(woken, True, [], [], sys.getswitchinterval())

    def _note_directory(self) -> None:
        try:
            self.directory = os.getcwd()  # a copy may be woken when it is there no more
        except FileNotFoundError:
            self.directory = None

    def _serve_copy(
        self, generator: tuple[Any, ...], link: int, files: Sequence[native.OpenFile]
    ) -> NoReturn:
        """All that a copy does: it is beside the live session, and never reaches its event loop.

        generator: the state of the module random, which Python has seeded anew as after a fork.
        """
        try:
            random.setstate(generator)
            copies.serve(self._kernel, link, files)
        finally:
            os._exit(1)

    def _next_is_touched(self) -> bool:
        """Whether the pages that were noted are touched. Now and then they are not: those that were
        count as written at the next freeze, also where no cell has written them for long."""
        self._since_untouched = (self._since_untouched + 1) % _TOUCHED_IN_A_ROW
        return self._since_untouched != 0

    def _touch_pages(self) -> None:
        """Make ready what the next cell will write; learn what a fault costs on this machine."""
        self._touch_follows = False
        started = time.perf_counter()
        touched = self._library.touch_pages(self._link.fd)
        if touched > _FAULTS_LEARNT_FROM:
            self._fault_s = (time.perf_counter() - started) / touched

    def _greet(
        self, woken: int, ids_kept: bool, lost: list[int], notes: list[list[str]], interval: float
    ) -> None:
        """First steps of a woken process. interval: the interpreter's switch interval, seconds."""
        notes += afterwake.mend(self._kernel, ids_kept=ids_kept, lost=lost)
        sys.setswitchinterval(interval)
        self.say_hello(woken=woken, ids_kept=ids_kept, notes=notes)
        if self._waiting:
            # it was frozen in the middle of a cell, whose reply was given long ago
            self._waiting = 0
            raise LeaveCell

    # What magics ask

    def request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        """Send a time-travel command (docs/protocol.md) and return its result.

        Raises the TimeTravelError that the supervisor answers with, and LeaveCell when the session
        is about to be restored: then nothing after it in the cell runs.
        """
        if threading.current_thread() is not threading.main_thread():
            raise errors.BadRequest(
                "Time travel can be asked for in a cell only, not in a thread. Nothing was done."
            )
        # an interrupt is put off until the answer is there: it would leave a freeze half done
        with interrupts_put_off():
            return self._request(command, args)

    def _request(self, command: str, args: dict[str, Any]) -> dict[str, Any]:
        self._requests += 1
        number = self._requests
        self._link.report(report="request", id=number, command=command, args=args)

        def is_answer(frame: Frame) -> bool:
            if frame.kind != Kind.COMMAND:
                return False
            content = frame.json()
            return bool(content["command"] == "answer" and content["id"] == number)

        self._waiting += 1
        try:
            answer = self._link.wait(is_answer, self.obey_at_once).json()
        finally:
            self._waiting = max(0, self._waiting - 1)
        if "error" in answer:
            raise _as_error(answer["error"], answer["text"])
        if answer.get("leave"):
            raise LeaveCell
        result: dict[str, Any] = answer["result"]
        return result


def _as_error(name: str, text: str) -> errors.TimeTravelError:
    """Return the error that the supervisor names; one that is not known here keeps its name."""
    kind: type[errors.TimeTravelError] = getattr(errors, name, None) or type(
        name, (errors.TimeTravelError,), {}
    )
    error = kind.__new__(kind)
    error.args = (text,)
    return error
