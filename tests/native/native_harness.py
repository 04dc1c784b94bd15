"""A mini supervisor: starts targets in a world, has them frozen, killed and woken."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import native_target as tt

from tests.conftest import PORTS
from tests.waiting import PATIENCE

HERE = pathlib.Path(__file__).parent


class Hang(AssertionError):
    """Nothing came over a link in time."""


def receive(link: socket.socket) -> Any:
    """One message from a target or an init."""
    link.settimeout(PATIENCE)
    try:
        data = link.recv(1 << 20)
    except TimeoutError:
        raise Hang("no answer") from None
    if not data:
        raise EOFError("the other end is gone")
    return json.loads(data)


def until(condition: Callable[[], bool]) -> bool:
    """Wait for what another process does a moment later; false only after a long time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def listen(path: str) -> socket.socket:
    """A socket for a frozen process, which another user may connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen(8)
    return listener


@dataclass
class Process:
    """A target that runs: live, or woken."""

    world: World
    pid: int
    link: socket.socket
    out: int
    err: int
    woken: dict[str, Any] = field(default_factory=dict)

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> Any:
        self.send(request, fds or [])
        return self.reply()

    def send(self, request: dict[str, Any], fds: list[int]) -> None:
        socket.send_fds(self.link, [json.dumps(request).encode()], fds)

    def reply(self) -> Any:
        try:
            reply = receive(self.link)
        except EOFError:
            how = self.world.kill(self.pid)  # it has ended already: this asks how
            raise EOFError(f"the target has ended, {how}; it wrote: {self.errors()}") from None
        if "error" in reply:
            raise AssertionError(reply["error"])
        return reply["ok"]

    def value(self, expression: str) -> Any:
        """Evaluate in the target."""
        return self.ask({"value": expression})

    def run(self, statements: str) -> None:
        """Execute in the target."""
        self.ask({"run": statements})

    def freeze(
        self,
        held: Callable[[socket.socket], None] | None = None,
        *,
        clone: bool = False,
        **options: int,
    ) -> Frozen:
        """Freeze it; it goes on, unless moved. held is called with the other end of hold_fd.

        clone: also where the world's freezes are by differences.
        """
        moved = options.get("flags", 0) & tt.MOVE
        if self.world.by_differences and not moved and not clone:
            base = self._freeze(None, {**options, "base_pid": 0}, keeps_file=True)
            frozen = self.freeze_difference(base, held, **options)
            frozen.settle()
            return frozen
        return self._freeze(held, options)

    def freeze_difference(
        self, base: Frozen, held: Callable[[socket.socket], None] | None = None, **options: int
    ) -> Frozen:
        """Freeze it by a difference from base, where that can be. What is returned has no process
        before it is asked something."""
        pid = base.facts["frozen_pid"]
        frozen = self._freeze(held, {"base_pid": pid, **options}, keeps_file=True)
        if frozen.facts["difference_bytes"]:
            frozen.base = base
        return frozen

    def _freeze(
        self,
        held: Callable[[socket.socket], None] | None,
        options: dict[str, int],
        keeps_file: bool = False,
    ) -> Frozen:
        path = str(self.world.folder / f"frozen.{self.world.count()}")
        listener = listen(path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # before anything is sent: a packet from earlier has no sender
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        descriptors = {"hold_fd": theirs.fileno()} if held else {}
        if keeps_file:
            descriptors["difference_fd"] = os.memfd_create("difference")
        with ours:
            request = {"freeze": options, "descriptors": list(descriptors)}
            self.send(request, [listener.fileno(), *descriptors.values()])
            listener.close()
            theirs.close()
            if held:
                ours.settimeout(PATIENCE)
                held(ours)
            moved = options.get("flags", 0) & tt.MOVE
            frozen = Frozen(self.world, path, self.pid, {} if moved else self.reply())
            frozen.file = descriptors.get("difference_fd", -1)
            frozen.at = options.get("difference_at", 0)
            return frozen

    def kill(self) -> None:
        self.world.kill(self.pid)
        self.close()

    def close(self) -> None:
        self.link.close()
        for fd in (self.out, self.err):
            if fd >= 0:
                os.close(fd)
        self.out = self.err = -1

    def errors(self) -> str:
        """What it has written to 2 so far."""
        return drain(self.err)

    def output(self) -> str:
        """What it has written to 1 so far."""
        return drain(self.out)


def drain(fd: int) -> str:
    data = b""
    while select.select([fd], [], [], 0.05)[0]:
        piece = os.read(fd, 65536)
        if not piece:
            break
        data += piece
    return data.decode()


@dataclass
class Frozen:
    """A frozen process, known by its socket."""

    world: World
    path: str
    live_pid: int
    made: dict[str, Any]
    base: Frozen | None = None
    """Set: this is a difference from it, of which a process is still to be made."""
    file: int = -1
    at: int = 0

    @property
    def report(self) -> list[list[str]]:
        return list(self.made["report"])

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.made["facts"])

    def settle(self) -> tt.Answer | None:
        """Have the process made, if there is only a difference so far."""
        if self.base is None:
            return None
        base, self.base = self.base, None
        os.unlink(self.path)
        with listen(self.path) as listener:
            fds = (listener.fileno(), self.file)
            answer = base.ask(tt.DIFFERENCE, fds=fds, arg64=self.at)
        os.close(self.file)
        if answer.error:
            raise OSError(answer.error, f"difference: {os.strerror(answer.error)}")
        self.made["facts"]["frozen_pid"] = answer.pid
        return answer

    def connect(self) -> socket.socket:
        self.settle()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(PATIENCE)
        connection.connect(self.path)
        return connection

    def ask(
        self,
        command: int,
        flags: int = 0,
        arg64: int = 0,
        fds: tuple[int, ...] = (),
        arg: int = 0,
    ) -> tt.Answer:
        with self.connect() as connection:
            request = tt.Request(ctypes.sizeof(tt.Request), command, flags, arg, arg64)
            socket.send_fds(connection, [bytes(request)], list(fds))
            data = connection.recv(4096)
            if not data:
                raise ConnectionResetError(104, "the frozen process is gone")
            return tt.Answer.from_buffer_copy(data)

    def wake(self, flags: int = 0) -> Process:
        """A woken copy, after it has said so over its new link."""
        link, out, err, passed = self.world.channels()
        answer = self.ask(tt.WAKE, flags, fds=passed)
        for fd in passed:
            os.close(fd)
        if answer.error:
            link.close()
            os.close(out)
            os.close(err)
            raise OSError(answer.error, f"wake: {os.strerror(answer.error)}, step {answer.bytes}")
        process = Process(self.world, answer.pid, link, out, err)
        self.world.processes.append(process)
        process.woken = process.reply()
        return process

    def twin(self, live: int = 0) -> Frozen:
        """live: the process whose latest writes it is to be ready for."""
        path = str(self.world.folder / f"twin.{self.world.count()}")
        with listen(path) as listener:
            answer = self.ask(tt.TWIN, fds=(listener.fileno(),), arg=live)
        assert answer.error == 0, os.strerror(answer.error)
        return Frozen(self.world, path, self.live_pid, {"twin_pid": answer.pid})

    def quit(self) -> None:
        assert self.ask(tt.QUIT).error == 0


class World:
    """Where targets run. See native_world.py for the kinds."""

    def __init__(self, kind: str, library: pathlib.Path, states: pathlib.Path) -> None:
        self.kind = kind
        self.by_differences = bool(os.environ.get("TT_BY_DIFFERENCES"))
        """Freezes are by a difference from one that is made just before, where that can be."""
        self.made = 0
        self.processes: list[Process] = []
        self.temporary = tempfile.TemporaryDirectory(prefix="tt_native_", dir="/tmp")
        self.folder = pathlib.Path(self.temporary.name)
        os.chmod(self.folder, 0o777)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(
            os.environ,
            TT_LIBRARY=str(library),
            TT_STATES=str(states),
            TT_PORT=str(next(PORTS)),  # one that is free again whenever no target has it
            PYTHONPATH=str(HERE),
            PYTHONDONTWRITEBYTECODE="1",
        )
        self.init = subprocess.Popen(
            [sys.executable, str(HERE / "native_world.py"), kind, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=self.folder,
        )
        theirs.close()
        assert receive(self.control) == "ready"

    def count(self) -> int:
        self.made += 1
        return self.made

    def channels(self) -> tuple[socket.socket, int, int, tuple[int, ...]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        return ours, out_read, err_read, (theirs.detach(), out_write, err_write)

    def start(self, setup: str = "") -> Process:
        """A Python target: setup is run first, then it answers."""
        program = self.folder / f"target{self.count()}.py"
        program.write_text(f"{setup}\nimport native_target\nnative_target.serve(globals())\n")
        return self.start_program([sys.executable, str(program)])

    def start_program(self, argv: list[str]) -> Process:
        link, out, err, passed = self.channels()
        socket.send_fds(self.control, [json.dumps({"spawn": argv}).encode()], list(passed))
        pid = receive(self.control)
        for fd in passed:
            os.close(fd)
        process = Process(self, pid, link, out, err)
        self.processes.append(process)
        return process

    def kill(self, pid: int) -> Any:
        """Kill a process and have it reaped; its exit status, or a signal's number, negative."""
        self.control.send(json.dumps({"kill": pid}).encode())
        return receive(self.control)

    def signal(self, pid: int, number: int) -> None:
        self.control.send(json.dumps({"kill": pid, "signal": number}).encode())
        receive(self.control)

    def mount(self, source: str, target: str, kind: str = "", data: str = "") -> int:
        """Mount, without a kind a folder once more; 0 or an errno."""
        self.control.send(json.dumps({"mount": [source, target, kind, data]}).encode())
        return int(receive(self.control))

    def unmount(self, target: str) -> None:
        """Remove the topmost mount; processes may have it in use."""
        self.control.send(json.dumps({"unmount": target}).encode())
        assert receive(self.control) == 0

    def pids(self) -> list[int]:
        self.control.send(json.dumps({"pids": 1}).encode())
        return list(receive(self.control))

    def close(self) -> None:
        for process in self.processes:
            if process.out >= 0:
                process.kill()
        self.control.close()
        self.init.wait(PATIENCE)
        self.temporary.cleanup()
