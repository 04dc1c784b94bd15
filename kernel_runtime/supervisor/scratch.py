"""A scratch process in the sandbox, in which what was pickled is loaded once.

What pickles may still not load (an enum of the session, a class whose constructor wants more): that
is found out now, not on the day when it is needed. It is confined like a copy: no network, nothing
written. A unit that was loaded before, with all that it needs, is not tried again.

It runs among the files of the moment. Where a later cell has changed those of the environment (a
bad `pip install`), a failure says nothing of the checkpoint, and nothing is taken out for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_runtime.blob_channel import ChannelError
from kernel_runtime.engines.dill.engine import DillEngine, Loaded, without
from kernel_runtime.errors import CheckpointRefused, SandboxError

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session
    from kernel_runtime.timeline.model import Checkpoint

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "executor" / "scratch.py"
_LINK_FD: Final = 3

_TRIED: Final = ("variables", "definitions")
"""Kinds of units. One of another kind that cannot be loaded costs no variable."""


class Scratch:
    """Trial loads of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._good: set[str] = set()

    async def tried(
        self,
        engine: DillEngine,
        worker: ThreadPoolExecutor,
        manifest: Mapping[str, Any],
        checkpoint: Checkpoint,
    ) -> dict[str, Any]:
        """The manifest, with what cannot be loaded moved to what is lost.

        Raises CheckpointRefused if no process can be started, ChannelError if one was killed.
        """
        units = {unit["id"]: unit for unit in manifest["units"]}
        keys = {id: _key(id, units) for id in units}
        to_try = [unit for unit in units.values() if unit["try"] and unit["kind"] in _TRIED]
        new = [unit for unit in to_try if keys[unit["id"]] not in self._good]
        names = {name for unit in new for name in unit["names"]}
        if not names:
            return dict(manifest)
        try:
            lost = await self._load(engine, worker, manifest, names)
        except ChannelError:
            # one of them has taken the process with it: which?
            lost = []
            for unit in new:
                try:
                    lost += await self._load(engine, worker, manifest, set(unit["names"]))
                except ChannelError as error:
                    why = f"loading it ends the process ({error})"
                    lost += [(name, why) for name in unit["names"]]
        files = checkpoint.capture("filesystem", engine="overlay")
        if files is not None and files.state != "ready":
            files = None
        if lost and files is not None and not self._session.environment.is_at(files):
            self._session.log.info(
                "Kept though they could not be loaded in an environment that has changed since #%s "
                "(`%%timetravel verify` tries them again): %s",
                checkpoint.number,
                "; ".join(f"{name}: {why}" for name, why in lost),
            )
            return dict(manifest)
        gone = {name for name, _ in lost}
        self._good.update(keys[unit["id"]] for unit in new if not gone.intersection(unit["names"]))
        return without(manifest, lost) if lost else dict(manifest)

    async def _load(
        self,
        engine: DillEngine,
        worker: ThreadPoolExecutor,
        manifest: Mapping[str, Any],
        names: Collection[str],
    ) -> list[tuple[str, str]]:
        """Which of these variables cannot be loaded, and why. Raises ChannelError."""
        loaded = await self.in_process(engine, worker, manifest, names)
        return [(name, why) for name, why in loaded.lost if name in names]

    async def in_process(
        self,
        engine: DillEngine,
        worker: ThreadPoolExecutor,
        manifest: Mapping[str, Any],
        names: Collection[str] | None,
        summaries: bool = False,
    ) -> Loaded:
        """Load variables in a process of their own. Raises ChannelError, CheckpointRefused."""
        session, durability = self._session, self._session.durability
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                try:
                    async with durability.starting:
                        # -B: it leaves no bytecode among the user's files
                        pid = await session.launcher.spawn_scratch(
                            ["-B", str(_PROGRAM), str(_LINK_FD)],
                            {_LINK_FD: theirs.fileno()},
                            manifest.get("hash_seed"),
                        )
                        durability.copies.add(pid)
                except SandboxError as error:
                    raise CheckpointRefused(f"what was pickled cannot be tried: {error}") from error
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    worker, engine.hand_out, ours, manifest, names, summaries
                )
            finally:
                await session.sandbox.signal(pid, signal.SIGKILL, group=False)
                durability.copies.discard(pid)


def _key(id: int, units: Mapping[int, Mapping[str, Any]]) -> str:
    """Of a unit's bytes and of all that it needs."""
    seen: dict[int, Any] = {}
    todo = [id]
    while todo:
        one = todo.pop()
        if one not in seen and one in units:
            seen[one] = [units[one]["stream"], units[one]["buffers"]]
            todo += units[one]["needs"]
    return hashlib.sha256(json.dumps(list(seen.values())).encode()).hexdigest()
