"""One coordinator: started, asked, stopped. All calls block; use a thread from an event loop.

What it is asked goes through the program ``dmtcp_command``, whose options and (from version 5)
JSON output are DMTCP's public interface; the wire format between the programs is not, and is never
spoken here. docs/dmtcp.md lists what is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kernel_runtime.dmtcp import tools as _tools
from kernel_runtime.dmtcp.errors import (
    CheckpointIncomplete,
    CommandFailed,
    CommandTimeout,
    CoordinatorFailed,
    CoordinatorGone,
)
from kernel_runtime.dmtcp.images import images_in
from kernel_runtime.dmtcp.tools import Tools

HOST: Final = "127.0.0.1"
GUARD: Final = Path(__file__).with_name("guard.py")

Fence = Literal["namespace", "none"]

_START_S: Final = 20.0
_COMMAND_S: Final = 10.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.005
_CLIENT: Final = re.compile(
    r"^(\d+), (.*)\[(\d+):(\d+)\]@(.*?), ([0-9a-f]+-\d+-[0-9a-f]+), (?:WorkerState::)?(\w+)",
    re.MULTILINE,
)
_NOT_FOUND: Final = ("DMT_COORD_NOT_FOUND", "Coordinator not found", "Did DMTCP coordinator die")
_NOT_RUNNING: Final = ("DMT_COORD_NOT_RUNNING", "computation not in running state")
_NOT_NOW: Final = "no program runs under the coordinator, or a checkpoint is under way"
_SETTLED_S: Final = 60.0


@dataclass(frozen=True)
class Status:
    """What a coordinator says of its computation."""

    peers: int
    """Processes that are connected."""
    running: bool
    """Whether all of them run: not while a checkpoint or a restart is under way."""
    interval: int
    """Seconds between two checkpoints that it makes by itself; 0: none."""


@dataclass(frozen=True)
class Client:
    """A process that runs under a coordinator."""

    program: str
    pid: int
    """As it sees itself: the same after each restart."""
    real_pid: int
    """In its pid namespace, now."""
    host: str
    unique_id: str
    """The same in the name of its image."""
    state: str
    """``RUNNING``, ``CHECKPOINTING``, ``RESTARTING``, …"""


class Coordinator:
    """A coordinator of one's own, with private directories.

    Use it as a context manager, or call `quit`: a coordinator that is not asked to end does so when
    this process does.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tools: Tools | None = None,
        port: int = 0,
        fence: Fence = "namespace",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """directory: made with mode 0700 if need be; images go into ``images`` in it.

        port: on 127.0.0.1; 0: any free one, kept by `restart` where it is still free. fence:
        ``namespace`` lets nobody in but processes of the same user; with ``none`` the coordinator
        listens on every interface and whoever connects can stop the programs: for a machine or
        container of one's own only. Raises DmtcpMissing, DmtcpTooOld.
        """
        self.tools = tools or _tools.find()
        self.directory = directory
        self.images = directory / "images"
        self.scratch = directory / "tmp"
        self.log = directory / "coordinator.log"
        self.fence = fence
        self.port = port
        self.pid = 0
        """Of dmtcp_coordinator."""
        self._any_port = port == 0
        self._environment = dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Coordinator:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.quit()

    # -- life ---------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether the process is there; costs nothing."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = _START_S) -> None:
        """Start it and wait until it listens; timeout in seconds. Raises CoordinatorFailed."""
        if self.is_alive:
            return
        for path in (self.directory, self.images, self.scratch):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        inner_port = 0 if self.fence == "namespace" else self.port
        argv = [str(self.tools.coordinator), "--coord-port", str(inner_port)]
        argv += ["--port-file", str(port_file), "--ckptdir", str(self.images)]
        if self.tools.can("coordinator tmpdir"):
            argv += ["--tmpdir", str(self.scratch)]
        if self.tools.can("stale timeout"):
            argv += ["--stale-timeout", "-1"]
        argv += ["-q", "-q"]
        # whoever starts a coordinator by hand must not find its settings here
        env = {k: v for k, v in self._environment.items() if not k.startswith("DMTCP_")}
        with open(self.log, "ab", opener=_private) as log:
            if self.fence == "namespace":
                said = self._start_guarded(argv, port_file, env, log, timeout)
                self.port, self.pid = said["port"], said["coordinator"]
            else:
                self._start_bare(argv, port_file, env, log, timeout)

    def _start_guarded(
        self, argv: list[str], port_file: Path, env: Mapping[str, str], log: Any, timeout: float
    ) -> dict[str, Any]:
        wanted = {"argv": argv, "port": self.port, "port_file": str(port_file)}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=env,
            cwd=self.directory,
        )
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        text = process.stdout.readline() if ready else b""
        try:
            said: dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            said = {}
        if "port" in said:
            self._process = process
            return said
        process.kill()
        process.wait()
        _close_pipes(process)
        raise self._why(said) if said else CoordinatorFailed("it did not answer in time")

    def _why(self, said: Mapping[str, Any]) -> CoordinatorFailed:
        step = str(said.get("step", ""))
        if step.startswith("port"):
            if self._any_port:
                self.port = 0
            return CoordinatorFailed(str(said["error"]), "Give another port, or 0 for a free one")
        if step == "a network namespace":
            return CoordinatorFailed(
                f"{said['error']}, and without one every user of this machine could stop its "
                "programs",
                "Allow user namespaces (see docs/install.md), or on a machine of your own use "
                'fence="none"',
            )
        return CoordinatorFailed(str(said["error"]))

    def _start_bare(
        self, argv: list[str], port_file: Path, env: Mapping[str, str], log: Any, timeout: float
    ) -> None:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, cwd=self.directory
        )
        end = time.monotonic() + timeout
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                self.port = int(port_file.read_text())
                self._process, self.pid = process, process.pid
                return
            time.sleep(_LOOK_S)
        process.kill()
        process.wait()
        _close_pipes(process)
        raise CoordinatorFailed(
            f"it does not listen (port {self.port})", "Give another port, or 0 for a free one"
        )

    def restart(self, timeout: float = _START_S) -> None:
        """Start it again after it has died; programs that ran under it have died with it.

        The old port is taken again if that is still free and was not asked for by number. Raises
        CoordinatorFailed.
        """
        self._forget()
        try:
            self.start(timeout)
        except CoordinatorFailed:
            if not self._any_port:
                raise
            self.port = 0
            self.start(timeout)

    def quit(self, timeout: float = _END_S) -> None:
        """End the programs under it, then it. The second call does nothing. Never raises."""
        if self.is_alive:
            with contextlib.suppress(CommandFailed, CommandTimeout, CoordinatorGone):
                self._command("--quit", timeout=timeout)
            assert self._process is not None
            if self._process.stdin is not None:
                self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        _close_pipes(process)

    # -- asking -------------------------------------------------------------------------------

    def status(self, timeout: float = _COMMAND_S) -> Status:
        """Raises CoordinatorGone, CommandTimeout."""
        said = self._command("--status", timeout=timeout)
        if self.tools.can("json"):
            found = json.loads(said)
            return Status(found["num_peers"], found["running"], found["checkpoint_interval"])
        fields = dict(re.findall(r"^\s*(\w+)=(\w+)", said, re.MULTILINE))
        return Status(
            int(fields["NUM_PEERS"]), fields["RUNNING"] == "yes", int(fields["CKPT_INTERVAL"])
        )

    def clients(self, timeout: float = _COMMAND_S) -> list[Client]:
        """The processes under it, in the order in which they came. Raises as `status`."""
        said = self._command("--list", timeout=timeout)
        if self.tools.can("json"):
            said = json.loads(said).get("workers", "")
        return [
            Client(program, int(pid), int(real), host, unique, state)
            for _, program, pid, real, host, unique, state in _CLIENT.findall(said)
        ]

    def set_interval(self, seconds: int, timeout: float = _COMMAND_S) -> None:
        """Have it make a checkpoint every so many seconds by itself; 0: none."""
        self._command("--interval", str(seconds), timeout=timeout)

    def request_checkpoint(self, timeout: float = _COMMAND_S) -> None:
        """Begin a checkpoint and do not wait. Raises CommandFailed: there is nothing to do it of,
        or one is under way; CoordinatorGone, CommandTimeout."""
        self._command("--checkpoint", timeout=timeout)

    def checkpoint(self, timeout: float = 600.0) -> list[Path]:
        """Make a checkpoint; return its images, one for each process, when they are complete.

        The programs go on when this returns. An older image of the same process in the same
        directory is replaced (by rename). timeout in seconds. Processes that were restarted or
        forked a moment ago, and another checkpoint that is under way, are waited for, 60 seconds at
        most. Raises CommandFailed, CheckpointIncomplete: the programs run on; CoordinatorGone: they
        ended with it; CommandTimeout.
        """
        before = {path: _version_of(path) for path in images_in(self.images)}
        said = self._when_running("--bcheckpoint", timeout=timeout)
        # only what is new: an image of a process that has ended since must not be taken along
        made = [p for p in images_in(self.images) if before.get(p) != _version_of(p)]
        expected = json.loads(said)["num_peers"] if self.tools.can("json") else len(made)
        if not made or len(made) != expected:
            raise CheckpointIncomplete(expected, len(made))
        return made

    def kill(self, timeout: float = _COMMAND_S) -> None:
        """End the programs under it, and wait until they have left. Raises as `status`."""
        end = time.monotonic() + timeout
        self._command("--kill", timeout=timeout)
        self.wait_empty(end - time.monotonic())

    def wait_empty(self, timeout: float = _COMMAND_S) -> None:
        """Wait until no process is connected: before that no restart is accepted.

        Raises CommandTimeout, CoordinatorGone.
        """
        end = time.monotonic() + timeout
        while self.status(max(_LOOK_S, end - time.monotonic())).peers:
            if time.monotonic() > end:
                raise CommandTimeout("the end of its programs", timeout)
            time.sleep(_LOOK_S)

    def _when_running(self, command: str, timeout: float) -> str:
        end = time.monotonic() + min(timeout, _SETTLED_S)
        while True:
            try:
                return self._command(command, timeout=timeout)
            except CommandFailed as error:
                if error.said != _NOT_NOW or time.monotonic() > end or not self.status().peers:
                    raise
            time.sleep(_LOOK_S)

    def _command(self, *arguments: str, timeout: float) -> str:
        argv = [str(self.tools.command), "--coord-host", HOST, "--coord-port", str(self.port)]
        if self.tools.can("json"):
            argv.append("--json")
        if not self.is_alive:
            raise CoordinatorGone(self.port)
        try:
            done = subprocess.run(
                [*argv, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=max(_LOOK_S, timeout),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandTimeout(arguments[0].lstrip("-"), timeout) from error
        said = f"{done.stdout}\n{done.stderr}".strip()
        if done.returncode == 0:
            return done.stdout
        if any(word in said for word in _NOT_FOUND) or not self._outlived():
            raise CoordinatorGone(self.port)
        if any(word in said for word in _NOT_RUNNING):
            said = _NOT_NOW
        raise CommandFailed(arguments[0].lstrip("-"), said)

    def _outlived(self) -> bool:
        """Whether it is there a moment after a command failed: its end takes that to be seen."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
            return False
        return True


def _version_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
