"""The environment as the supervisor uses it: set up with the sandbox, captured with the process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jupyter_core.paths import jupyter_runtime_dir

from kernel_runtime.engines.overlay import plan as planning
from kernel_runtime.engines.overlay.directory import EnvironmentDirectory
from kernel_runtime.engines.overlay.engine import DEEP, OverlayEngine
from kernel_runtime.engines.overlay.trial import explain
from kernel_runtime.errors import EnvironmentRefused, RestoreRefused, SandboxError
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.modes import USER_MODE, USER_MODES, is_initial_user_namespace
from kernel_runtime.supervisor import idle, shared_memory
from kernel_runtime.supervisor.config import Supervisor
from kernel_runtime.timeline.model import Capture, Checkpoint, Note

NO_SYSTEM_PACKAGES: Final = (
    "system packages cannot be installed in this mode: of all users only you exist in the sandbox, "
    "and sudo gives no rights there; a virtual environment or conda can be changed"
)
_NOTES_SHOWN = 50
_FOLLOW_S = 2.0


class Environment:
    """The overlay engine of one session, or the reason why there is none."""

    def __init__(self, config: Supervisor, log: logging.Logger, python: str) -> None:
        self._config = config
        self.prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
        """Of the Python environment that cells run from."""
        self._log = log
        self.engine: OverlayEngine | None = None
        self.problem = ""
        self.told: dict[str, str] = {}
        self.own: list[str] = []
        """Paths that are the session's own business, not the environment's."""
        self.found_layers = False
        """Whether the session had left anything when it began."""
        self.is_committed = False
        """Whether it is a container's own layer that something else captures."""
        self._has_all_ids = True
        self._proc: Callable[[int], str] | None = None

    @property
    def enabled(self) -> bool:
        """Whether the environment is captured."""
        return self.engine is not None

    async def start(
        self,
        sandbox: InitClient,
        *,
        directory: Path,
        workspace: Iterable[Path],
        hidden: Iterable[Path],
        passed: Iterable[Path] = (),
        has_followed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Mount it in a sandbox that has just been started. has_followed: see engine.start.

        Raises SandboxError if that failed, and then the sandbox is to be thrown away; whether the
        session goes on without, is the caller's to decide.
        """
        likely = [self.prefix, os.path.expanduser("~"), os.environ.get("TMPDIR", "/tmp")]
        host = await asyncio.to_thread(
            planning.this_host,
            own_user_namespace=sandbox.mode in USER_MODES or not is_initial_user_namespace(),
            all_ids=sandbox.mode != USER_MODE,
            paths=[os.path.realpath(p) for p in likely],
        )
        plan = await asyncio.to_thread(
            self._plan, host, directory, list(workspace), list(hidden), list(passed)
        )
        engine = OverlayEngine(EnvironmentDirectory(directory), sandbox, plan)
        try:
            with idle.used():
                told = await engine.start(has_followed)
        except EnvironmentRefused as error:
            raise SandboxError(str(error)) from error
        except (OSError, SandboxError) as error:
            raise SandboxError(str(explain(directory.parents[1], str(error)))) from error
        if not engine.state.uppers:
            reason = next(iter(told.values()), "there is nothing to cover")
            raise SandboxError(str(explain(directory.parents[1], reason)))
        self.found_layers = any(engine.state.stacks.values())
        self.own = [os.path.realpath(path) for path in [*hidden, *workspace]]
        self.engine = engine
        self.told = told
        self._proc = sandbox.proc
        self._has_all_ids = sandbox.mode != USER_MODE

    def _plan(
        self,
        host: planning.Host,
        directory: Path,
        workspace: list[Path],
        hidden: list[Path],
        passed: list[Path],
    ) -> planning.Plan:
        sockets = [] if self._config.docker_socket else list(planning.DOCKER_SOCKETS)
        masked = [*hidden, Path(jupyter_runtime_dir())]
        if self._sockets_hidden():
            sockets += _agents()
            if runtime := os.environ.get("XDG_RUNTIME_DIR"):
                masked.append(Path(runtime))
        plan = planning.make_plan(
            host,
            workspace=[os.path.realpath(path) for path in workspace],
            host_paths=[
                *(os.path.realpath(os.path.expanduser(p)) for p in self._config.host_paths),
                *map(str, passed),
            ],
            hidden=[os.path.realpath(path) for path in masked if path.exists()],
            blocked=[path for path in sockets if os.path.exists(path)],
            environment=os.path.realpath(directory),
            owned_copies=() if host.is_root else planning.copies_on_this_host(),
        )
        return plan

    def _sockets_hidden(self) -> bool:
        if self._config.sockets == "auto":
            return self._config.is_isolated
        return self._config.sockets == "none"

    def processes_ended(self) -> None:
        """All processes inside but the frozen ones are gone."""
        if self.engine is not None and self._proc is not None:
            shared_memory.drop_semaphores(self._proc)

    # -- captures ---------------------------------------------------------------------------

    async def capture(
        self, executor: int, keep: Iterable[int], hold: int | None, *, must: bool = False
    ) -> Capture | None:
        """Capture it; a failure is a failed capture, not an error. must: also on a full disk."""
        if self.engine is None:
            return None
        try:
            captured = await self.engine.capture(
                executor, keep, hold, must=must, by_copy=self._config.children == "capture"
            )
        except (SandboxError, OSError) as error:
            return Capture(
                "filesystem",
                "overlay",
                "failed",
                error=f"The environment could not be captured: {error}",
            )
        notes = [Note(*note) for note in captured.notes[:_NOTES_SHOWN]]
        if self._proc is not None:
            notes += shared_memory.unheld(self._proc, executor)
        return Capture(
            "filesystem",
            "overlay",
            "ready",
            ref=captured.fresh[0] if captured.fresh else None,
            not_captured=tuple(notes),
            details={
                **captured.details(),
                "fresh": captured.fresh,
                "took_ms": captured.took_ms,
            },
        )

    async def flush(self) -> None:
        """Wait until the layers are on the disk; only then may the database name them."""
        if self.engine is not None:
            await self.engine.sync()

    # -- restores ---------------------------------------------------------------------------

    def make_room(self) -> None:
        """A restore must work on a full disk: what it writes first is the present state."""
        if self.engine is not None:
            self.engine.directory.make_room()

    def capture_of(self, checkpoint: Checkpoint) -> Capture | None:
        """The capture of a checkpoint that can be restored here, or None.

        Raises RestoreRefused if layers of it are gone.
        """
        capture = checkpoint.capture("filesystem", engine="overlay")
        if self.engine is None or capture is None or capture.state != "ready":
            return None
        gone = self.engine.missing(*places_of(capture))
        if gone:
            raise RestoreRefused(
                f"The environment of #{checkpoint.number} cannot be brought back: its layer "
                f"{gone[0]} is gone from the store. Nothing was changed; memory and workspace "
                f"alone: %restore {checkpoint.number} --only process."
            )
        return capture

    def layers_of(self, checkpoint: Checkpoint) -> list[Path]:
        """The directories of a checkpoint's layers, by the names that they have now."""
        capture = checkpoint.capture("filesystem", engine="overlay")
        if self.engine is None or capture is None or capture.state != "ready":
            return []
        stacks = self.engine.rewritten(capture.details.get("stacks", {})).values()
        return [self.engine.directory.layers / layer for stack in stacks for layer in stack]

    async def restore(self, capture: Capture, **live: Any) -> bool:
        """Mount it; say whether anything was changed. Raises SandboxError; then all is as before.

        live: executor, keep and hold where the executor lives on; follows (engine.restore).
        """
        assert self.engine is not None
        return await self.engine.restore(*places_of(capture), **live)

    def workspace_followed(self) -> None:
        """The workspace has followed the last restore, or will not."""
        if self.engine is not None:
            self.engine.workspace_followed()

    def is_at(self, capture: Capture) -> bool:
        """Whether a restore of it would change nothing."""
        return self.engine is None or self.engine.is_at(*places_of(capture))

    async def follow_host(self) -> None:
        """Let cells see what others change on the host, within seconds, also while a cell runs.

        A file that is saved in an editor, copied from elsewhere or waited for; and the resolver's
        settings when the host has moved to another network.
        """
        while self.engine is not None:
            await asyncio.sleep(_FOLLOW_S)
            try:
                if self.engine is not None:
                    await self.engine.refresh()
            except SandboxError:
                return  # the session ends

    # -- upkeep -----------------------------------------------------------------------------

    async def upkeep(self, captures: Iterable[Capture | None], lock: asyncio.Lock) -> bool:
        """Merge what can be; say whether anything was, so that `rewritten` has something new."""
        if self.engine is None:
            return False
        named = [dict(places_of(c)[0]) for c in captures if c is not None]
        return await self.engine.upkeep(named, lock)

    def is_deep(self, times: int = 1) -> bool:
        """Whether some stack has so many layers, or so many times as many, that it is merged."""
        return self.engine is not None and self.engine.depth >= DEEP * times

    def rewritten(self, capture: Capture) -> Capture | None:
        """A capture that names merged layers instead of those that they stand for, or None."""
        if self.engine is None or capture.state != "ready":
            return None
        stacks = places_of(capture)[0]
        new = self.engine.rewritten(stacks)
        if new == stacks:
            return None
        return replace(capture, details={**capture.details, "stacks": new})

    async def collect(self, referenced: Iterable[str]) -> None:
        """Delete layers that nothing needs. Under the session's lock: no mount may be made."""
        if self.engine is not None:
            await self.engine.collect(referenced)

    async def close(self, referenced: Iterable[str], *, forget: bool) -> None:
        """The sandbox is down. forget: the timeline ends with the kernel."""
        engine, self.engine = self.engine, None
        if engine is None:
            return
        if forget:
            await asyncio.to_thread(engine.forget)
        else:
            await engine.close(referenced)

    def status(self) -> dict[str, Any]:
        """For the status command: docs/protocol.md."""
        if self.engine is None:
            return {
                "covered": ["/"] if self.is_committed else [],
                "not_covered": {}, "layers": int(self.is_committed), "problem": self.problem,
                "system_packages": "",
            }  # fmt: skip
        state = self.engine.state
        return {
            "covered": sorted(state.uppers),
            "not_covered": dict(self.told),
            "layers": sum(map(len, state.stacks.values())),
            "problem": self.problem,
            "system_packages": "" if self._has_all_ids else NO_SYSTEM_PACKAGES,
        }


def layers_of(capture: Capture | None) -> set[str]:
    """The ids of the layers that a capture needs."""
    if capture is None or capture.engine != "overlay":
        return set()
    stacks, root_layer = places_of(capture)
    return {layer for stack in stacks.values() for layer in stack} | {root_layer} - {""}


def places_of(capture: Capture) -> tuple[Mapping[str, list[str]], str]:
    return capture.details.get("stacks", {}), capture.details.get("root_layer", "")


def _agents() -> list[str]:
    """Sockets of agents and of the desktop that the environment variables name."""
    found = [os.environ.get("SSH_AUTH_SOCK", "")]
    found.append(os.environ.get("GPG_AGENT_INFO", "").partition(":")[0])  # PATH:PID:VERSION
    for bus in os.environ.get("DBUS_SESSION_BUS_ADDRESS", "").split(";"):
        if bus.startswith("unix:path="):
            found.append(bus.removeprefix("unix:path=").partition(",")[0])
    return [path for path in found if path] + ["/tmp/.X11-unix"]
